"""Borders of sentences in ten languages, in texts made of known sentences."""

import random

import pytest

from detalbert.corpus.sentences import split_sentences

LANGUAGES = {
    "Arabic": [
        "غادرت السفينة الميناء في الصباح.",
        "أين كان البحارة؟",
        "لم يعرف أحد الجواب!",
        "كتب د. أحمد رسالة طويلة.",
        "كان الثمن 3.5 دنانير.",
        "«لا أعرف.»",
        "القمح والملح في المخزن؛ والحرير في البيت.",
        "هل عاد القبطان؟",
        "في عام 1912 غرقت السفينة.",
        "عاش الناس قرب النهر.",
    ],
    "Chinese": [
        "船在早上离开了港口。",
        "水手们在哪里？",
        "没有人知道答案！",
        "价格是3.5元。",
        "“我不知道。”",
        "一九一二年船沉了。",
        "李先生写了一封长信。",
        "真的吗？！",
        "人们住在河边，种小麦。",
        "（他们没有回来。）",
    ],
    "Czech": [
        "Loď ráno vyplula z přístavu.",
        "Kde byli námořníci?",
        "Nikdo neznal odpověď!",
        "Ing. Novák napsal sv. Janovi dopis.",
        "Stálo to 3,5 koruny, tj. málo.",
        "„Nevím.“",
        "V roce 1912 se loď potopila.",
        "Žili v domě č. 7 u řeky.",
        "Čekali do 5. května…",
        "Měla mnoho, např. Hedvábí a sůl.",
    ],
    "English": [
        "The ship left the harbour in the morning.",
        "Where were the sailors?",
        "Nobody knew the answer!",
        "Dr. Smith wrote to Mr. J. R. Brown.",
        "It cost 3.5 pounds, i.e. little.",
        '"I do not know."',
        "In 1912 the ship sank.",
        "They lived near St. Paul's, by the river.",
        "(They did not return.)",
        "Mrs. Brown bought salt, silk, etc. for the crew.",
    ],
    "French": [
        "Le bateau quitta le port le matin.",
        "Où étaient les marins ?",
        "Personne ne savait !",
        "« Je ne sais pas. »",
        "« Qui est là ? »",
        "À midi, il pleuvait.",
        "Ils étaient douze.",
        "M. Dupont écrivit une lettre.",
        "Élise n'avait rien.",
        "En 1912 il coula.",
    ],
    "German": [
        "Das Schiff verließ am Morgen den Hafen.",
        "Wo waren die Matrosen?",
        "Niemand wusste die Antwort!",
        "Dr. Müller schrieb am 3. Oktober einen Brief.",
        "Es kostete 3,5 Mark, d.h. wenig.",
        "„Ich weiß es nicht.“",
        "Im Jahr 1912 sank das Schiff.",
        "Über dem Fluss lag Nebel.",
        "Er hatte vieles, z.B. Salz und Seide.",
        "Prof. A. Weiß kam nicht.",
    ],
    "Greek": [
        "Το πλοίο έφυγε το πρωί.",
        "Πού ήταν οι ναύτες;",
        "Κανείς δεν ήξερε την απάντηση!",
        "Ο κ. Παπαδάκης έγραψε ένα γράμμα.",
        "Κόστιζε 3,5 ευρώ.",
        "«Δεν ξέρω.»",
        "Το 1912 βυθίστηκε το πλοίο.",
        "Έμεναν κοντά στο ποτάμι.",
        "Είχαν πολλά, π.χ. αλάτι.",
        "Γιατί δεν γύρισαν;",
    ],
    "Hindi": [
        "जहाज़ सुबह बंदरगाह से निकला।",
        "नाविक कहाँ थे?",
        "किसी को उत्तर नहीं पता था!",
        "डॉ. शर्मा ने एक पत्र लिखा।",
        "दाम 3.5 रुपये था।",
        "“मुझे नहीं पता।”",
        "1912 में जहाज़ डूब गया।",
        "लोग नदी के पास रहते थे।",
        "वे कब लौटे?",
        "रेशम घर में था।",
    ],
    "Korean": [
        "배가 아침에 항구를 떠났다.",
        "선원들은 어디에 있었나?",
        "아무도 몰랐다!",
        "내일 봐.",
        "이제 집에 가.",
        "1912년에 배가 가라앉았다.",
        "“나는 몰라.”",
        "소금과 비단이 있었다.",
    ],
    "Polish": [
        "Statek rano opuścił port.",
        "Gdzie byli żeglarze?",
        "Nikt nie znał odpowiedzi!",
        "Świt był zimny.",
        "Kosztowało to 3,5 złotego, tzn. mało.",
        "„Nie wiem.”",
        "W 1912 roku statek zatonął.",
        "Żaden z nich nie wrócił.",
        "Mieszkali przy ul. Długiej nad rzeką.",
        "Łódź miała np. Anna.",
    ],
    "Russian": [
        "Утром корабль вышел из порта.",
        "Где были матросы?",
        "Никто не знал ответа!",
        "А. С. Иванов написал письмо.",
        "Это стоило 3,5 рубля.",
        "«Я не знаю.»",
        "Корабль затонул в 1912 г.",
        "Они жили в г. Пскове у реки.",
        "Проф. Смирнов не вернулся.",
        "Ёлка стояла в углу.",
    ],
    "Spanish": [
        "El barco salió del puerto por la mañana.",
        "¿Dónde estaban los marineros?",
        "¡Nadie sabía la respuesta!",
        "La Sra. Gómez escribió una carta.",
        "Costaba 3,5 pesos.",
        "«No lo sé.»",
        "En 1912 el barco se hundió.",
        "Ángel vivía cerca del río.",
        "¿Y quién volvió?",
        "El Dr. Ruiz compró sal.",
    ],
    "Turkish": [
        "Gemi sabah limandan ayrıldı.",
        "Denizciler neredeydi?",
        "İşte kimse cevabı bilmiyordu!",
        "Şehirde Doç. Yılmaz bir mektup yazdı.",
        "Fiyatı 3,5 liraydı.",
        "“Bilmiyorum.”",
        "1912 yılında gemi battı.",
        "Çocuklar ırmağın yanında yaşıyordu.",
        "Ölüm yoktu.",
        "Ipek evdeydi.",
    ],
    "Ukrainian": [
        "Корабель вранці вийшов із порту.",
        "Де були матроси?",
        "Ніхто не знав відповіді!",
        "Т. Г. Шевченко написав листа.",
        "Вони жили на вул. Садовій біля річки.",
        "«Я не знаю.»",
        "Корабель затонув у 1912 р.",
        "Їхній дім стояв у м. Київ на р. Дніпро.",
        "Йому було сто років…",
        "Доц. Бойко працював у школі ім. Франка.",
    ],
}


def ends_of(sentences: list[str]) -> set[int]:
    """The places behind sentences, counted without white space, but for the last."""
    ends = set()
    place = 0
    for sentence in sentences[:-1]:
        place += len("".join(sentence.split()))
        ends.add(place)
    return ends


@pytest.mark.parametrize("language", LANGUAGES)
def test_at_least_95_percent_of_the_borders_are_right(language: str) -> None:
    sentences = random.Random(0).choices(LANGUAGES[language], k=200)
    separator = "" if language == "Chinese" else " "
    borders = ends_of(split_sentences(separator.join(sentences)))
    right = borders & ends_of(sentences)
    assert len(right) >= 0.95 * 199
    assert len(right) >= 0.95 * len(borders)


def test_a_title_at_the_beginning_of_a_sentence_ends_none() -> None:
    sentences = ["He left.", "Mr. Smith came.", "J. R. Brown did not."]
    assert split_sentences(" ".join(sentences)) == sentences


def test_words_that_end_sentences_are_no_abbreviations() -> None:
    for text in (
        "Я сказал им. Они ушли.",
        "Он ест рис. Она пьёт чай.",
        "Les autres des 12. Ils ont.",
    ):
        assert len(split_sentences(text)) == 2


def test_marks_of_writing_direction_beside_an_end_mark_are_passed_over() -> None:
    sentences = ["هل عاد القبطان؟\u200f", "\u200fكتب (رسالة).\u200e", "لا!"]
    assert split_sentences(" ".join(sentences)) == sentences


def test_lines_are_sentences_of_a_text_without_marks() -> None:
    assert split_sentences("เรือออกจากท่า\nไม่มีใครรู้") == ["เรือออกจากท่า", "ไม่มีใครรู้"]
