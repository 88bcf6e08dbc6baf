// Every visible text box of the page: no two of different elements may cover each other.
const boxes = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  if (!walk.currentNode.data.trim()) continue;
  const range = document.createRange();
  range.selectNodeContents(walk.currentNode);
  for (const r of range.getClientRects()) boxes.push([r.left, r.top, r.right, r.bottom,
    walk.currentNode.data.trim()]);
}
const found = [];
for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
  const [a, b] = [boxes[i], boxes[j]];
  if (a[4] !== b[4] && Math.min(a[2], b[2]) - Math.max(a[0], b[0]) > 2 &&
      Math.min(a[3], b[3]) - Math.max(a[1], b[1]) > 4) found.push(a[4] + ' / ' + b[4]);
}
return [boxes.length, found];
