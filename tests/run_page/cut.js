// [what is wider than its room and does not scroll, tables, the page's overhang].
const lost = [];
for (const e of document.querySelectorAll('table, svg, pre, li, p, h1, h2, dl, button')) {
  const room = e.closest('.wide') || e.parentElement, box = e.getBoundingClientRect();
  const scrolls = ['auto', 'scroll'].includes(getComputedStyle(room).overflowX);
  const right = room.getBoundingClientRect().left + (scrolls ? room.scrollWidth : room.clientWidth);
  if (box.right > right + 1) lost.push(e.tagName + ' ' + box.right + ' > ' + right);
}
return [lost, document.querySelectorAll('table').length,
        document.documentElement.scrollWidth - document.documentElement.clientWidth];
