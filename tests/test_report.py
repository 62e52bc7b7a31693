"""The page: right numbers, nothing from outside, and readable in a real browser."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from algd.cli import main
from algd.runs.config import Settings
from algd.runs.directory import Run
from algd.runs.grouping import gather
from algd.training import loop
from algd.types import Budget
from algd.visualization.curves import plot_tasks
from algd.visualization.report import POLICY, build, duration, middle, number, row_of
from algd.visualization.report import verdict as verdict_of
from support.made_up import write_run
from support.small import small

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
]
# Opens what is folded, waits for the films, and leaves what it finds in the page's title.
PROBE = """<script>
addEventListener("load", async () => {
  document.querySelectorAll("details").forEach(d => d.open = true);
  const films = [...document.querySelectorAll("video")];
  await Promise.all(films.map(film => film.readyState >= 1 || film.error ? 0 :
    new Promise(done => film.onloadedmetadata = film.onerror = done)));
  const page = document.documentElement;
  document.title = JSON.stringify({
    width: page.clientWidth, scroll: page.scrollWidth,
    small: [...document.querySelectorAll("body *")].filter(e => e.scrollWidth >
      e.clientWidth + 1 && getComputedStyle(e).display == "block" && !e.closest("thead")).length,
    broken: [...document.images].filter(i => !i.complete || !i.naturalWidth).length,
    films: films.map(film => film.videoWidth),
    outside: performance.getEntriesByType("resource").map(e => e.name)
      .filter(name => !name.startsWith("data:")).length,
  });
});
</script>"""


class Elements(HTMLParser):
    """All elements of a page with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def of(self, tag):
        return [attributes for found, attributes in self.found if found == tag]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for seed, (earned, cost) in enumerate([(8.0, 10.0), (10.0, 12.0), (15.0, 17.0)]):
        write_run(folder / f"a{seed}", "algd", seed, last_return=earned, last_cost=cost)
        write_run(folder / f"b{seed}", "sac", seed, last_return=2 * earned, last_cost=3 * cost)
    budgets = [Budget(20.0, name="hazards"), Budget(100.0, name="energy")]
    write_run(folder / "parts & <b>more</b>", env="PointButton1", budgets=budgets)
    return folder


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    """A page with made-up runs, and with a film of one that was trained."""
    settings = Settings(steps=2, envs=1, eval_episodes=1, seed=1, env_options=("horizon=40",))
    filmed = tmp_path_factory.mktemp("filmed") / "run"
    loop.train(settings, small("algd"), "algd", filmed)
    out = tmp_path_factory.mktemp("page") / "report.html"
    main(["report", str(runs), str(filmed), str(runs / "none"), "--out", str(out), "--quiet"])
    return out


def test_numbers_are_written_for_people():
    assert [number(x) for x in (1.23456, 123456.0, float("nan"))] == ["1.235", "123,456", "–"]
    assert [duration(x) for x in (31.0, 150.0, 4000.0)] == ["31 s", "2 min", "1 h 07 min"]


def test_each_piece_of_a_run_has_a_speed_of_its_own(tmp_path):
    """100 steps at 50 a second, of which 40 again at 20, and twice more behind their end: 80 steps
    at 2 until it was interrupted again, and 100 at 4."""
    run = write_run(tmp_path / "run")
    pieces = [(0, 50, 60.0), (0, 100, 50.0), (60, 100, 20.0)]
    pieces += [(100, 120, 9.0), (100, 180, 2.0), (100, 120, 9.0), (100, 200, 4.0)]
    rows = [{"run": run.id, "from": a, "step": b, "steps_per_second": v} for a, b, v in pieces]
    run.timing_path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert run.seconds().wall == 100 / 50 + 40 / 20 + 80 / 2 + 100 / 4


def test_figures_of_a_run(runs):
    run = Run(runs / "a0")
    assert run.seconds().wall == 200.0
    row = row_of(run)
    assert row.figures["return"] == 8.0
    assert row.figures["training_cost"] == 80.0
    assert row.figures["episodes_over_budget"] == 0.25
    assert middle([row_of(Run(runs / f"a{seed}")) for seed in range(3)]).seed == 1


def test_tables_hold_means_intervals_and_verdicts(runs):
    tasks, _ = gather([runs])
    text = build(tasks, episodes=0).text
    rows = re.findall(r'<tr role="row"><th scope="row".*?</tr>', text)
    ours = next(row for row in rows if ">algd</th>" in row and ">3<" in row)
    assert "<span>11<small>8 to 15</small>" in ours
    assert "<span>13<small>10 to 17</small>" in ours
    # 15 of 20 episodes in each of three evaluations.
    assert "within 20 on average, 45 of 60 episodes within" in ours
    assert "25%" in ours
    assert "3 min" in ours
    theirs = next(row for row in rows if ">sac</th>" in row)
    assert "over 20 on average" in theirs


@pytest.mark.parametrize(
    ("costs", "verdict"),
    [
        # One seed: 2 / √19 is the standard error over its 20 episodes.
        ([19.0], "within 20 on average"),
        ([19.6], "undecided at 20 on average"),
        ([20.95], "over 20 on average"),
        ([19.0, 19.9], "within 20 on average"),
        ([19.0, 20.2], "undecided at 20 on average"),
        ([5.0, 5.0, 50.0], "undecided at 20 on average"),
    ],
)
def test_the_verdict_is_that_of_the_interval(costs, verdict, tmp_path):
    rows = [
        row_of(write_run(tmp_path / f"{i}", seed=i, last_cost=cost)) for i, cost in enumerate(costs)
    ]
    counted = f", {15 * len(costs)} of {20 * len(costs)} episodes within"
    assert verdict_of(rows, Budget(20.0), "") == verdict + counted


def test_sentences_fit_the_number_of_seeds(runs, tmp_path):
    texts = []
    for names in (["a0"], ["a0", "a1"], ["a0", "a1", "a2"], ["a0", "b0", "b1"]):
        text = build(gather([runs / name for name in names]).tasks, episodes=0).text
        texts.append(text[text.index("<p>An episode") : text.index("</caption>")])
    one, two, three, mixed = texts
    assert "Figures show one seed; tables its last evaluation, of 20 episodes." in one
    assert "below them the 95 % interval over its episodes" in one
    assert "Figures show mean and range of two seeds; tables the last evaluation" in two
    assert "below them the range between them" in two
    assert "below them the 95 % bootstrap interval over seeds" in three
    assert "for one seed the 95 % interval over its episodes, for two seeds the range" in mixed


def test_the_page_stands_alone_and_can_be_read_aloud(page):
    text = page.read_text()
    elements = Elements(text)
    assert POLICY in text
    for tag in ("img", "video", "script", "link", "iframe", "source"):
        for attributes in elements.of(tag):
            assert (attributes.get("src") or attributes.get("href")).startswith("data:")
    assert "url(" not in text
    assert "@import" not in text
    assert all(len(attributes["alt"]) > 20 for attributes in elements.of("img"))
    assert all(attributes["aria-label"] for attributes in elements.of("video"))
    assert all(attributes["scope"] for attributes in elements.of("th"))
    assert len(elements.of("caption")) == len(elements.of("table"))
    assert elements.of("html") == [{"lang": "en"}]
    assert "parts &amp; &lt;b&gt;more&lt;/b&gt;" in text
    assert page.stat().st_size < 3 * 2**20


def test_what_is_missing_is_said_on_the_page(page, runs):
    text = page.read_text()
    assert "There is no directory" in text
    # The made-up runs have no checkpoint, hence no film; the trained one has.
    assert "No film of sac on DiffDrive" in text
    assert text.count("<video") == 1


def test_the_same_runs_give_the_same_page(runs):
    tasks, _ = gather([runs / "a0"])
    assert build(tasks, episodes=0) == build(tasks, episodes=0)


def test_command_never_overwrites(runs, page, capsys):
    before = page.read_bytes()
    for arguments, message in (
        ([str(runs), "--out", str(page)], "exists"),
        ([str(runs), "--out", str(page.with_suffix(".pdf"))], ".html"),
        ([str(page.parent), "--out", str(page.with_name("b.html"))], "None of these"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["report", *arguments])
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
    assert page.read_bytes() == before


def browse(folder: Path, address: Path, *flags: str) -> str:
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags]
    done = subprocess.run(
        [*command, address.as_uri()], capture_output=True, text=True, timeout=1200, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def probed(page: Path, folder: Path, width: int, *flags: str) -> dict:
    """What the browser finds in the page at this width: in a frame, as windows have a minimum."""
    inner, outer = folder / "inner.html", folder / "outer.html"
    text = page.read_text().replace(POLICY, POLICY + "; script-src 'unsafe-inline'")
    script = PROBE.replace("document.title =", "parent.postMessage(").replace(
        "});\n});", "}), '*');\n});"
    )
    inner.write_text(text.replace("</body>", script + "</body>"))
    outer.write_text(
        "<script>addEventListener('message', e => document.title = e.data)</script>"
        f'<iframe src="inner.html" style="border:0;width:{width}px;height:900px"></iframe>'
    )
    shown = browse(folder, outer, "--virtual-time-budget=20000", "--dump-dom", *flags)
    title = re.search(r"<title>(.*?)</title>", shown)
    assert title, shown[:2000]
    return json.loads(title[1].replace("&quot;", '"'))


@pytest.mark.skipif(CHROMIUM is None, reason="the program chromium is not installed")
@pytest.mark.parametrize("width", [360, 1280])
def test_in_a_browser(page, tmp_path, width):
    found = probed(page, tmp_path, width)
    assert found["width"] == width
    assert found["scroll"] <= width
    assert found["small"] == 0
    assert found["broken"] == 0
    assert found["films"] == [416]
    assert found["outside"] == 0


@pytest.mark.skipif(CHROMIUM is None, reason="the program chromium is not installed")
def test_in_print(page, tmp_path):
    browse(tmp_path, page, f"--print-to-pdf={tmp_path / 'page.pdf'}", "--no-pdf-header-footer")
    content = (tmp_path / "page.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 20


HOSTILE = (
    '"><meta http-equiv="refresh" content="0;url=//x"><script>1</script><img src=//x onerror=1>'
)


def test_whatever_runs_say_stays_text(tmp_path):
    """Names with markup, formulas that are none, and numbers that are not numbers."""
    run = write_run(
        tmp_path / f"{HOSTILE.replace('/', '')} $^{{$",
        env=f"{HOSTILE} $\\frac{{$",
        budgets=[Budget(20.0, name=f"{HOSTILE}{i}$_$") for i in range(2)],
    )
    config = run.config()
    for part, name in (("settings", "seed"), ("settings", "eval_episodes"), ("versions", HOSTILE)):
        config[part][name] = HOSTILE
    config["hyperparameters"][HOSTILE] = [HOSTILE]
    run.write_config(config)
    text = build({HOSTILE: {HOSTILE: [run]}}, [HOSTILE], episodes=0).text
    harmless = Elements(build({"a": {"b": [write_run(tmp_path / "b")]}}, ["c"], episodes=0).text)
    hostile = Elements(text)
    assert {tag for tag, _ in hostile.found} == {tag for tag, _ in harmless.found}
    assert hostile.of("meta") == harmless.of("meta")
    assert not [name for _, attributes in hostile.found for name in attributes if name[:2] == "on"]
    assert text.count("&lt;script&gt;") > 20
    plot_tasks({HOSTILE: {HOSTILE: [run]}}, tmp_path / "all.png", "all")
