"""Does `emberlm data check` count what an independent program counts?

usage: verify_data.py EMBERLM MODEL FILE… [--max-length 512] [--field known=name …] [--work DIR]

Reads each FILE (JSON Lines, a JSON list, CSV or plain text) with Python, writes its rows again as JSON Lines, JSON,
CSV, Parquet, and each of the first three as gzip and zstd, and asks EMBERLM (the binary) about every one of them. Compared
are rows, kinds by their keys, tokens and supervised tokens (transformers' chat template with its generation mask), the
length quantiles, truncated and all-masked rows, exact duplicates and special tokens in the content. MODEL's template
must mark what is trained with {% generation %}; the folder `assets` of the project is one.
Exits with 1 if one number differs. Needs transformers, pyarrow and zstandard.
"""
import argparse, csv, gzip, io, json, math, os, subprocess, sys, tempfile

import pyarrow, pyarrow.parquet, zstandard
from transformers import AutoTokenizer

LISTS = ("messages", "conversations", "history", "tools")


def rows_of(path):
    text = open(path, encoding="utf-8-sig", newline="").read()
    if path.endswith(".txt"):
        return [{"text": text}]
    if path.endswith(".csv"):
        return [dict(row) for row in csv.DictReader(io.StringIO(text, newline=""))]
    if text.lstrip().startswith("["):
        return json.loads(text)
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def conversation(row, fields):
    """(kind, messages or text)"""
    if fields:
        row = {known: row[name] for known, name in fields.items()}
    has = lambda *keys: all(row.get(key) is not None for key in keys)
    pair = lambda ask, answer: [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
    if has("messages"):
        return "messages", row["messages"]
    if has("conversations"):
        roles = {"human": "user", "gpt": "assistant", "system": "system"}
        return "sharegpt", [{"role": roles[m["from"]], "content": m["value"]} for m in row["conversations"]]
    if has("instruction", "output"):
        ask = row["instruction"] + ("\n" + row["input"] if row.get("input") else "")
        history = [m for q, a in row.get("history") or [] for m in pair(q, a)]
        system = [{"role": "system", "content": row["system"]}] if row.get("system") else []
        return "alpaca", system + history + pair(ask, row["output"])
    if has("prompt", "response"):
        return "prompt", pair(row["prompt"], row["response"])
    if has("question", "answer"):
        return "question", pair(row["question"], row["answer"])
    return "text", row["text"]


def count(rows, fields, tokenizer, longest):
    kinds, lengths, seen = {}, [], set()
    total = dict(rows=len(rows), tokens=0, supervised_tokens=0)
    found = dict.fromkeys(["truncated", "all-masked", "exact-duplicate", "special-tokens"], 0)
    specials = tokenizer.all_special_tokens
    for row in rows:
        kind, content = conversation(row, fields)
        kinds[kind] = kinds.get(kind, 0) + 1
        texts = [content] if kind == "text" else [m["content"] for m in content]
        if kind == "text":
            ids = tokenizer(content, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
            mask = [1] * len(ids)
        else:
            made = tokenizer.apply_chat_template(content, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
            ids, mask = made["input_ids"], made["assistant_masks"]
        lengths.append(len(ids))
        # Documents of plain text are not truncated: the trainer splits them over rows.
        found["truncated"] += len(ids) > longest
        ids, mask = ids[:longest], mask[:longest]
        supervised = sum(mask[1:])
        found["all-masked"] += supervised == 0
        total["tokens"] += len(ids)
        total["supervised_tokens"] += supervised
        key = json.dumps(content, ensure_ascii=False)
        found["exact-duplicate"] += key in seen
        seen.add(key)
        found["special-tokens"] += any(special in text for special in specials for text in texts)
    lengths.sort()
    quantile = lambda percent: lengths[max(math.ceil(len(lengths) * percent / 100), 1) - 1]
    return {**total, **found, "kinds": kinds, "p50": quantile(50), "p95": quantile(95), "max": lengths[-1]}


def told(report):
    findings = {count["finding"]: count["rows"] for count in report["findings"]}
    names = ["truncated", "all-masked", "exact-duplicate", "special-tokens"]
    return {
        "rows": report["rows"], "tokens": report["tokens"], "supervised_tokens": report["supervised_tokens"],
        **{name: findings[name] for name in names},
        "kinds": {kind: of["rows"] for kind, of in report["kinds"].items()},
        "p50": report["lengths"]["p50"], "p95": report["lengths"]["p95"], "max": report["lengths"]["max"],
    }


def written(rows, work, name):
    """The rows in every format; the paths."""
    base = os.path.join(work, name)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    table = io.StringIO(newline="")
    keys = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(table, keys)
    writer.writeheader()
    cell = lambda value: "" if value is None else json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value
    writer.writerows({key: cell(row.get(key)) for key in keys} for row in rows)
    texts = {"jsonl": lines, "json": json.dumps(rows, indent=1, ensure_ascii=False), "csv": table.getvalue()}
    for end, text in texts.items():
        data = text.encode()
        for path, data in [
            (f"{base}.{end}", data),
            (f"{base}.{end}.gz", gzip.compress(data)),
            (f"{base}.{end}.zst", zstandard.compress(data)),
        ]:
            open(path, "wb").write(data)
            yield path
    for codec in ["snappy", "zstd"]:
        path = f"{base}.{codec}.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, compression=codec, row_group_size=400)
        yield path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("emberlm")
    parser.add_argument("model")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--field", action="append", default=[])
    parser.add_argument("--work", default=None)
    args = parser.parse_args()
    work = args.work or tempfile.mkdtemp()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    fields = dict(field.split("=") for field in args.field)
    failed = 0
    for n, path in enumerate(args.files):
        rows = rows_of(path)
        expected = count(rows, fields, tokenizer, args.max_length)
        paths = [path, *written(rows, work, f"{n}")]
        for other in paths:
            command = [args.emberlm, "data", "check", other, "--model", args.model, "--json", "--no-near",
                       "--fail-on", "none", "--max-length", str(args.max_length)]
            command += [part for field in args.field for part in ("--field", field)]
            result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            found = told(json.loads(result.stdout)) if result.returncode == 0 else {}
            wrong = [f"{key}: {found.get(key)} for {expected[key]}" for key in expected if found.get(key) != expected[key]]
            failed += bool(wrong)
            print("differs" if wrong else "agrees ", other, "; ".join(wrong), flush=True)
        print("   ", json.dumps(expected))
    print(f"{failed} files differ")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
