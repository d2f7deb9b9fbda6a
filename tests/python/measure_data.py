"""Speed and memory of `emberlm data check` and `emberlm data clean`, and whether they find what was planted.

usage: measure_data.py EMBERLM MODEL [--rows 10000 100000 1000000] [--work DIR] [--no-check]

Makes rows with make_rows.py, runs both commands on them and prints seconds, rows a second and peak memory of each; then
how many rows of each fault were found and how many were planted. Exits with 1 if a fault of which the count must be exact
differs, or fewer than 98 of 100 near-duplicates are found. Needs nothing but Python; Linux or macOS.
"""
import argparse, json, os, resource, subprocess, sys, tempfile, time

EXACT = ["unreadable", "empty", "html", "urls", "mojibake", "cut-off", "exact-duplicate"]


def run(command):
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} failed")
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return json.loads(text), time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("emberlm")
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--work", default=None)
    parser.add_argument("--no-check", action="store_true")
    args = parser.parse_args()
    work = args.work or tempfile.mkdtemp()
    wrong = 0
    for rows in args.rows:
        path, planted = os.path.join(work, f"{rows}.jsonl"), os.path.join(work, f"{rows}.planted")
        if not os.path.exists(planted):
            maker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "make_rows.py")
            made = subprocess.run([sys.executable, maker, str(rows), path], check=True, stdout=subprocess.PIPE, text=True)
            open(planted, "w").write(made.stdout)
        planted = json.load(open(planted))
        size = os.path.getsize(path) / 2**20
        commands = {
            "check": [args.emberlm, "data", "check", path, "--model", args.model, "--json", "--fail-on", "none"],
            "clean": [args.emberlm, "data", "clean", path, "--out", f"{path}.kept.jsonl", "--strict", "--json"],
        }
        if args.no_check:
            del commands["check"]
        for name, command in commands.items():
            report, seconds, cpu, mib = run(command)
            print(f"{name} {rows} rows ({size:.0f} MiB): {seconds:.1f} s, {rows / seconds:.0f} rows/s, "
                  f"{rows / cpu:.0f} rows/s of one core, peak {mib:.0f} MiB", flush=True)
            if name == "check":
                found = {count["finding"]: count["rows"] for count in report["findings"]}
            else:
                found = {count["rule"]: count["rows"] for count in report["rules"]}
                found["mojibake"] = found.pop("garbage")
            for fault in [*EXACT, "near-duplicate"]:
                fine = found[fault] == planted[fault]
                if fault == "near-duplicate":
                    fine = 0.98 * planted[fault] <= found[fault] <= planted[fault] + 0.001 * rows
                wrong += not fine
                print(f"  {'' if fine else 'WRONG '}{fault}: {found[fault]} found, {planted[fault]} planted")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
