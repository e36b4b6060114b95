"""Texts that every machine has: Python's own manual and library, and sentences written for the tests."""

import functools
import random
import sysconfig
from pathlib import Path

# ruff: noqa: RUF001
LANGUAGES = {
    "en": [
        "The mill stands by the river and grinds the corn of the whole valley.",
        "Nobody remembers who built it, but everybody knows the way to its door.",
        "In spring the water is high and the wheel turns by day and by night.",
        "The children bring their bread to school and talk about the weather.",
        "When the harvest was poor, the miller took nothing for his work.",
    ],
    "de": [
        "Die Mühle steht am Fluss und mahlt das Korn des ganzen Tales.",
        "Niemand weiß mehr, wer sie gebaut hat, aber jeder kennt den Weg zu ihrer Tür.",
        "Im Frühling steht das Wasser hoch und das Rad dreht sich bei Tag und bei Nacht.",
        "Die Kinder bringen ihr Brot mit in die Schule und reden über das Wetter.",
        "Wenn die Ernte schlecht war, nahm der Müller nichts für seine Arbeit.",
    ],
    "fr": [
        "Le moulin se trouve au bord de la rivière et moud le blé de toute la vallée.",
        "Personne ne se souvient de celui qui l'a construit, mais chacun connaît le chemin.",
        "Au printemps, l'eau est haute et la roue tourne jour et nuit.",
        "Les enfants apportent leur pain à l'école et parlent du temps qu'il fait.",
        "Quand la récolte était mauvaise, le meunier ne demandait rien pour son travail.",
    ],
    "es": [
        "El molino está junto al río y muele el trigo de todo el valle.",
        "Nadie recuerda quién lo construyó, pero todos conocen el camino hasta su puerta.",
        "En primavera el agua está alta y la rueda gira de día y de noche.",
        "Los niños llevan su pan a la escuela y hablan del tiempo que hace.",
        "Cuando la cosecha era mala, el molinero no cobraba nada por su trabajo.",
    ],
    "pl": [
        "Młyn stoi nad rzeką i miele zboże z całej doliny.",
        "Nikt już nie pamięta, kto go zbudował, ale wszyscy znają drogę do jego drzwi.",
        "Wiosną woda jest wysoka, a koło obraca się w dzień i w nocy.",
        "Dzieci przynoszą chleb do szkoły i rozmawiają o pogodzie.",
        "Gdy zbiory były słabe, młynarz nie brał nic za swoją pracę.",
    ],
    "tr": [
        "Değirmen nehrin kıyısında durur ve bütün vadinin buğdayını öğütür.",
        "Onu kimin yaptığını kimse hatırlamıyor, ama herkes kapısına giden yolu biliyor.",
        "İlkbaharda su yükselir ve çark gece gündüz döner.",
        "Çocuklar ekmeklerini okula getirir ve hava hakkında konuşurlar.",
        "Hasat kötü olduğunda değirmenci işi için hiçbir şey almazdı.",
    ],
    "vi": [
        "Cối xay nằm bên bờ sông và xay lúa cho cả thung lũng.",
        "Không ai còn nhớ người đã xây nó, nhưng mọi người đều biết đường đến cửa.",
        "Mùa xuân nước dâng cao và bánh xe quay cả ngày lẫn đêm.",
        "Trẻ em mang bánh mì đến trường và nói chuyện về thời tiết.",
        "Khi mùa màng thất bát, người thợ xay không lấy tiền công.",
    ],
    "ru": [
        "Мельница стоит у реки и мелет зерно всей долины.",
        "Никто уже не помнит, кто её построил, но каждый знает дорогу к её двери.",
        "Весной вода высокая, и колесо вращается днём и ночью.",
        "Дети приносят хлеб в школу и разговаривают о погоде.",
        "Когда урожай был плохим, мельник ничего не брал за свою работу.",
    ],
    "el": [
        "Ο μύλος βρίσκεται δίπλα στο ποτάμι και αλέθει το σιτάρι όλης της κοιλάδας.",
        "Κανείς δεν θυμάται ποιος τον έχτισε, αλλά όλοι ξέρουν τον δρόμο προς την πόρτα του.",
        "Την άνοιξη το νερό είναι ψηλά και ο τροχός γυρίζει μέρα και νύχτα.",
        "Τα παιδιά φέρνουν το ψωμί τους στο σχολείο και μιλούν για τον καιρό.",
        "Όταν η σοδειά ήταν κακή, ο μυλωνάς δεν έπαιρνε τίποτα για τη δουλειά του.",
    ],
    "ar": [
        "تقع الطاحونة بجانب النهر وتطحن قمح الوادي كله.",
        "لا أحد يتذكر من بناها، لكن الجميع يعرف الطريق إلى بابها.",
        "في الربيع يرتفع الماء وتدور العجلة ليلا ونهارا.",
        "يحمل الأطفال خبزهم إلى المدرسة ويتحدثون عن الطقس.",
        "عندما كان الحصاد سيئا لم يأخذ الطحان شيئا مقابل عمله.",
    ],
    "he": [
        "הטחנה עומדת ליד הנהר וטוחנת את החיטה של כל העמק.",
        "איש אינו זוכר מי בנה אותה, אבל כולם מכירים את הדרך אל הדלת.",
        "באביב המים גבוהים והגלגל מסתובב ביום ובלילה.",
        "הילדים מביאים את הלחם שלהם לבית הספר ומדברים על מזג האוויר.",
        "כאשר היבול היה דל, הטוחן לא לקח דבר עבור עבודתו.",
    ],
    "hi": [
        "चक्की नदी के किनारे खड़ी है और पूरी घाटी का अनाज पीसती है।",
        "किसी को याद नहीं कि इसे किसने बनाया, लेकिन सब इसके दरवाज़े का रास्ता जानते हैं।",
        "वसंत में पानी ऊँचा होता है और पहिया दिन रात घूमता है।",
        "बच्चे अपनी रोटी स्कूल ले जाते हैं और मौसम की बात करते हैं।",
        "जब फ़सल ख़राब होती थी, तब चक्कीवाला अपने काम का कुछ नहीं लेता था।",
    ],
    "ko": [
        "방앗간은 강가에 서 있고 골짜기 전체의 곡식을 빻는다.",
        "누가 지었는지 아무도 기억하지 못하지만 모두가 그 문으로 가는 길을 안다.",
        "봄에는 물이 높아서 바퀴가 밤낮으로 돌아간다.",
        "아이들은 빵을 학교에 가져가고 날씨에 대해 이야기한다.",
        "수확이 나쁠 때 방앗간 주인은 일한 값을 받지 않았다.",
    ],
    "zh": [
        "磨坊坐落在河边，为整个山谷的人们磨粮食。",
        "没有人记得是谁建造了它，但是每个人都知道去那里的路。",
        "春天河水上涨，水车日夜不停地转动。",
        "孩子们把面包带到学校，谈论着天气。",
        "收成不好的时候，磨坊主不收任何工钱。",
    ],
    "ja": [
        "水車小屋は川のそばに立っていて、谷じゅうの穀物をひいている。",
        "誰が建てたのか覚えている人はいないが、みんな入り口への道を知っている。",
        "春になると水かさが増し、水車は昼も夜も回り続ける。",
        "子どもたちは学校にパンを持って行き、天気の話をする。",
        "収穫が悪かった年には、粉屋は仕事の代金を受け取らなかった。",
    ],
    "th": [
        "โรงสีตั้งอยู่ริมแม่น้ำและสีข้าวของคนทั้งหุบเขา",
        "ไม่มีใครจำได้ว่าใครเป็นคนสร้าง แต่ทุกคนรู้จักทางไปยังประตูของมัน",
        "ในฤดูใบไม้ผลิน้ำขึ้นสูงและกังหันหมุนทั้งกลางวันและกลางคืน",
        "เด็กๆ นำขนมปังไปโรงเรียนและพูดคุยกันเรื่องสภาพอากาศ",
        "เมื่อการเก็บเกี่ยวไม่ดี เจ้าของโรงสีไม่รับค่าจ้างสำหรับงานของเขา",
    ],
}


@functools.cache
def _manual():
    from pydoc_data.topics import topics

    return [topics[name] for name in sorted(topics)]


@functools.cache
def _library():
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths if path.stat().st_size]


@functools.cache
def translations():
    """Pairs of a language and a document in it: the same sentences in an order of their own, as Markdown."""
    rng = random.Random(11)
    documents = []
    for _ in range(12):
        for language, sentences in LANGUAGES.items():
            chosen = rng.choices(sentences, k=rng.randint(4, 30))
            breaks = rng.choices([" ", "\n", "\n\n", "\n\n* "], [8, 2, 2, 1], k=len(chosen))
            text = "".join(a + b for a, b in zip(chosen, breaks, strict=True))
            documents.append((language, f"# {rng.choice(sentences)}\n\n{text}"))
    return documents


OPEN_CORPORA = {
    "python_manual": _manual,
    "python_library": _library,
    "many_languages": lambda: [text for _, text in translations()],
}
