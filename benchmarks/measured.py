"""The tables of docs/benchmarks.md, docs/results.md and two READMEs, written from the records of docs/measured/.

    python benchmarks/measured.py
    python benchmarks/measured.py --run=train_step.py,save.py --machine=A --data=FOLDER
    python benchmarks/train_step.py --dtype=bfloat16 --measured --machine=A

The first writes the tables anew. The second first runs, in FOLDER, the commands of benchmarks.jsonl that contain one of
these words, or all whose data are there, and appends what they find; with --page=results it runs those of
results.jsonl, whose scripts leave their results in a folder. The third measures one thing and appends it.

A record is a line of JSON: `table`, `row`, `figures` (column -> number or text), and as far as known `ratio` (times as
fast), `spread` (its lowest and highest), `machine`, `processor`, `load` (of the system in the minute before), `date`,
`versions`, `command`, `needs` (files of FOLDER) and `reads` (column -> metric of the command's results, in percent). Of
several records of a row each column shows the last. Numbers are shown as they are written. A README shows the commands
of its own tables, and between the marks `commands` those of the page in docs/.
"""

import datetime
import importlib.metadata
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_bool("measured", False, "Append the result to docs/measured/benchmarks.jsonl.")
flags.DEFINE_string("machine", None, "The machine's letter in docs/benchmarks.md; if unset, its processor is shown.")

ROOT = pathlib.Path(__file__).resolve().parents[1]
RECORDS = ROOT / "docs" / "measured"
MARKED = re.compile(r"(<!-- (measured|commands): (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
RATIO = "times as fast"
VARIABLES = re.compile("TF_NUM_|OMP_NUM_|TF_ENABLE_ONEDNN|TF_CPU_ALLOCATOR|ONEDNN_MAX")  # that a command begins with
LOAD = os.getloadavg()[0]
# What users read, and what shows the commands.
PAGES = {
    "benchmarks": (ROOT / "docs" / "benchmarks.md", ROOT / "benchmarks" / "README.md"),
    "results": (ROOT / "docs" / "results.md", ROOT / "experiments" / "README.md"),
}


def read_records(page: str) -> list[dict]:
    """The records of a page in their order, with numbers as they are written."""
    lines = (RECORDS / f"{page}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line, parse_float=str, parse_int=str) for line in lines]


def rounded(value):
    """A number with four digits; anything else as it is."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def append(page: str, table: str, row: str, figures: Mapping, peers: Iterable[str] = (), **more) -> None:
    """Appends a record of this machine and day; `needs` and `reads` stay those of the row.

    Args:
      figures: column -> number or text. peers: packages whose versions count, beside TensorFlow and Keras.
      more: command, ratio, spread.
    """
    kept = {}
    for known in read_records(page):
        if (known["table"], known["row"]) == (table, row):
            kept = {key: known[key] for key in ("needs", "reads") if key in known}
    processor = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    machine = {"machine": FLAGS.machine} if FLAGS.machine else {}
    record = {
        "table": table,
        "row": row,
        "figures": {name: rounded(value) for name, value in figures.items()},
        **more,
        **machine,
        "processor": f"{os.cpu_count()} x {processor[1] if processor else 'unknown'}",
        "load": round(LOAD, 1),
        "date": datetime.date.today().isoformat(),
        "versions": {name: importlib.metadata.version(name) for name in ("tensorflow", "keras", *peers)},
        **kept,
    }
    with (RECORDS / f"{page}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")


def add(table: str, row: str, figures: Mapping, peers: Iterable[str] = (), ratios: Sequence[float] = ()) -> None:
    """Appends what the running script measured, if --measured is given.

    Args:
      ratios: how many times as fast, in each round; their median and range are kept. See `append`.
    """
    if not FLAGS.measured:
        return
    more = {"ratio": round(statistics.median(ratios), 2)} if ratios else {}
    if len(ratios) > 1:
        more["spread"] = [round(min(ratios), 2), round(max(ratios), 2)]
    words = [word for word in sys.argv[1:] if not word.startswith(("--measured", "--machine="))]
    variables = [f"{name}={value}" for name, value in sorted(os.environ.items()) if VARIABLES.match(name)]
    command = shlex.join([*variables, f"benchmarks/{os.path.basename(sys.argv[0])}", *words])
    append("benchmarks", table, ", ".join([row, *variables]), figures, peers, command=command, **more)


class Row:
    """A row of a table: the last figure of each column, and column -> (machine and date; command)."""

    def __init__(self, title: str):
        self.title, self.figures, self.origins = title, {}, {}

    def take(self, record: Mapping) -> None:
        """Takes the figures of a later record."""
        figures = dict(record["figures"])
        if figures.keys() & self.figures.keys():
            self.figures.pop(RATIO, None)
        if "ratio" in record:
            spread = " ({} to {})".format(*record["spread"]) if "spread" in record else ""
            figures[RATIO] = f"**{record['ratio']}**{spread}"
        origin = [record.get("machine") or record.get("processor"), record.get("date")]
        self.figures |= figures
        self.origins |= dict.fromkeys(figures, (", ".join(filter(None, origin)), record.get("command", "")))

    def measured_on(self) -> str:
        """Machines and dates, each with the columns that it holds for, if not for all."""
        columns = {}
        for column, (origin, _) in self.origins.items():
            columns.setdefault(origin, []).append(column)
        partly = len(columns) > 1
        return "; ".join(f"{text} ({', '.join(names)})" if partly else text for text, names in columns.items() if text)

    def commands(self) -> list[str]:
        """Each command as it is typed: with `python` after variables of the environment."""
        commands = dict.fromkeys(command for _, command in self.origins.values() if command)
        return [re.sub(r"^((?:\w+=\S+ )*)", r"\1python ", command) for command in commands]


def read_rows(page: str) -> dict[tuple[str, str, str], Row]:
    """(table, title, machine) -> the row, in the order of their first records; in results machines do not matter."""
    rows = {}
    for record in read_records(page):
        machine = record.get("machine", record.get("processor", "")) if page == "benchmarks" else ""
        rows.setdefault((record["table"], record["row"], machine), Row(record["row"])).take(record)
    return rows


def in_lines(command: str) -> str:
    """A command in lines of at most 150 characters where it has spaces outside of quotes."""
    joined = re.sub("'[^']*'", lambda quoted: quoted[0].replace(" ", "\0"), command)
    lines = textwrap.wrap(joined, 150, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return " \\\n".join(lines).replace("\0", " ")


def table_text(rows: Sequence[Row]) -> str:
    """A table in Markdown; below it the machine and date if all rows share them."""
    columns = list(dict.fromkeys(name for row in rows for name in row.figures))
    lines = [[row.title, *(row.figures.get(column, "") for column in columns)] for row in rows]
    origins = [row.measured_on() for row in rows]
    below = [f"\nMeasured on {origins[0]}."] if origins[0] else []
    if len({*origins}) > 1:
        below = []
        columns.append("machine, date")
        lines = [[*line, origin] for line, origin in zip(lines, origins, strict=True)]
    table = [f"| {' | '.join(cells)} |" for cells in (["", *columns], *lines)]
    table.insert(1, "|---" * (len(columns) + 1) + "|")
    return "".join(f"{line}\n" for line in [*(re.sub(r"(?<=\|) +(?=\|)", " ", line) for line in table), *below])


def commands_text(tables: Mapping[str, Sequence[Row]]) -> str:
    """The commands of tables, each after the table and the rows that it measures."""
    named = {}
    for table, rows in tables.items():
        for number, row in enumerate(rows, start=1):
            for command in row.commands():
                named.setdefault(command, {}).setdefault(table, []).append(str(number))
    lines = [
        "".join(f"# {table}, row {', '.join(numbers)}\n" for table, numbers in places.items()) + in_lines(command)
        for command, places in named.items()
    ]
    return "\n".join(["```", *lines, "```\n"]) if lines else ""


def written_anew(page: str) -> dict[pathlib.Path, str]:
    """The texts of a page's files with the tables and commands of its records between their marks.

    Raises:
      ValueError: a table has no place in the files, or a place no table.
    """
    tables = {}
    for (table, _, _), row in read_rows(page).items():
        tables.setdefault(table, []).append(row)
    texts = {path: path.read_text(encoding="utf-8") for path in PAGES[page]}
    marks = {path: MARKED.findall(text) for path, text in texts.items()}
    shown = {path: [name for _, kind, name, _ in found if kind == "measured"] for path, found in marks.items()}
    both = sorted(name for names in shown.values() for name in names)
    if both != sorted(tables):
        raise ValueError(f"{page}: {sorted({*both} ^ {*tables})} are marked or measured, not both")
    page_file, readme = PAGES[page]

    def between(path: pathlib.Path, kind: str, name: str) -> str:
        if kind == "commands":
            return commands_text({table: tables[table] for table in shown[page_file]})
        commands = commands_text({name: tables[name]}) if path == readme else ""
        return table_text(tables[name]) + "\n" * bool(commands) + commands

    return {
        path: MARKED.sub(lambda mark, path=path: f"{mark[1]}\n{between(path, mark[2], mark[3])}\n{mark[4]}", text)
        for path, text in texts.items()
    }


def percent(folder: pathlib.Path, metric: str) -> str:
    """A metric of a run's folder in percent; of several seeds the mean, and the lowest and highest."""
    seeds = folder / "seeds.json"
    if seeds.exists():
        scores = json.loads(seeds.read_text())["summary"][metric]
        return "{:.1f} ({:.1f} to {:.1f})".format(*(100 * scores[name] for name in ("mean", "min", "max")))
    lines = (folder / "eval_results.txt").read_text().splitlines()
    return f"{100 * float(dict(line.split(' = ') for line in lines)[metric]):.1f}"


def measure(page: str, words: Sequence[str], folder: pathlib.Path) -> None:
    """Runs the page's commands that contain one of these words, or all, in a folder; appends what they find."""
    latest = {(record["table"], record["row"]): record for record in read_records(page) if "command" in record}
    rows = {}
    for record in latest.values():
        rows.setdefault(record["command"], []).append(record)
    for command, records in rows.items():
        if words and not any(word in command for word in words):
            continue
        missing = [name for record in records for name in record.get("needs", []) if not (folder / name).exists()]
        if missing:
            print(f"{folder} has no {missing[0]}, which this needs: {command}")
            continue
        parts = shlex.split(command)
        script = next(number for number, part in enumerate(parts) if part.endswith(".py") or part == "-m")
        variables = dict(part.split("=", 1) for part in parts[:script])
        program = ["-m"] if parts[script] == "-m" else [str(ROOT / parts[script])]
        more = ["--measured", *([f"--machine={FLAGS.machine}"] if FLAGS.machine else [])] * (page == "benchmarks")
        print(f"\n{command}", flush=True)
        subprocess.run([sys.executable, *program, *parts[script + 1 :], *more], cwd=folder, check=True,
                       env={**os.environ, "PYTHONPATH": str(ROOT), **variables})  # fmt: skip
        for record in records:
            if "reads" in record:
                output = folder / re.search(r"--output_dir=(\S+)", command)[1]
                figures = {column: percent(output, metric) for column, metric in record["reads"].items()}
                append(page, record["table"], record["row"], figures, command=command)


def main(_):
    if FLAGS.run is not None:
        measure(FLAGS.page, FLAGS.run, pathlib.Path(FLAGS.data).resolve())
    for page in PAGES:
        for path, text in written_anew(page).items():
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    flags.DEFINE_list("run", None, "Run the commands that contain one of these words; if empty, all.")
    flags.DEFINE_string("data", ".", "Folder with the files that commands name.")
    flags.DEFINE_enum("page", "benchmarks", [*PAGES], "Whose commands.")
    app.run(main)
