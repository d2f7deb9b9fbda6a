"""Rows with known faults, to measure `emberlm data check` and `emberlm data clean` with.

usage: make_rows.py ROWS OUT.jsonl [--seed 0]

Writes ROWS lines of {"question", "answer", "author", "created"} in sentences of made-up words, the same for the same
seed. Some rows have one fault each, planted at random; prints how many of each as one JSON object. Planted are: lines that are
no JSON, empty answers, HTML, heaps of addresses, text read in a wrong encoding, answers cut off in mid-sentence, exact
duplicates, and near-duplicates (one word of an earlier row's answer changed). Needs nothing but Python.
"""
import argparse, json, random

FAULTS = {  # share of the rows
    "unreadable": 0.001, "empty": 0.002, "html": 0.01, "urls": 0.005, "mojibake": 0.005,
    "cut-off": 0.02, "exact-duplicate": 0.03, "near-duplicate": 0.03,
}
REMEMBERED = 10_000  # rows of which duplicates are made


def vocabulary(rng, size):
    onsets, nuclei = "b c d f g h k l m n p r s t v w br st tr gl".split(), "a e i o u ai ou".split()
    codas = ["", "n", "r", "s", "l", "nd", "rk"]
    words = set()
    while len(words) < size:
        words.add("".join(rng.choice(onsets) + rng.choice(nuclei) + rng.choice(codas) for _ in range(rng.randint(1, 3))))
    return sorted(words)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int)
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    words = vocabulary(rng, 20_000)
    # Frequent and rare words, as in a language.
    weights = [0.0]
    for rank in range(len(words)):
        weights.append(weights[-1] + 1 / (rank + 10))
    cumulative = weights[1:]

    def sentence(least, most, end="."):
        chosen = rng.choices(words, cum_weights=cumulative, k=rng.randint(least, most))
        return " ".join(chosen).capitalize() + end

    names, shares = list(FAULTS), list(FAULTS.values())
    planted = dict.fromkeys(names, 0)
    remembered = []
    with open(args.out, "w", encoding="utf-8") as out:
        for n in range(args.rows):
            question = sentence(5, 9, "?")
            sentences = [sentence(6, 10) for _ in range(rng.randint(2, 4))]
            fault = rng.choices(names + [None], [*shares, 1 - sum(shares)])[0]
            if fault in ("exact-duplicate", "near-duplicate") and len(remembered) < 100:
                fault = None
            if fault:
                planted[fault] += 1
            if fault == "empty":
                sentences = []
            elif fault == "html":
                sentences[0] = "<p>" + sentences[0] + "</p>"
            elif fault == "urls":
                sentences = [f"https://{rng.choice(words)}.example/{rng.choice(words)}{k}" for k in range(4)]
            elif fault == "mojibake":
                sentences[-1] = sentences[-1][:-1] + " caf\u00c3\u00a9."
            elif fault == "cut-off":
                sentences[-1] = sentence(6, 10, "")
            answer = " ".join(sentences)
            if fault == "exact-duplicate":
                question, answer = rng.choice(remembered)
            elif fault == "near-duplicate":
                question, answer = rng.choice(remembered)
                # The last word: one sequence of three words changes.
                answer = answer.rsplit(" ", 1)[0] + " " + rng.choice(words) + str(n) + "."
            elif fault is None:
                # Long ones: a changed word leaves more than nine tenths of the sequences.
                if len(sentences) >= 3:
                    if len(remembered) < REMEMBERED:
                        remembered.append((question, answer))
                    elif rng.random() < 0.05:
                        remembered[rng.randrange(REMEMBERED)] = (question, answer)
            row = {"question": question, "answer": answer, "author": f"a{rng.randrange(1000)}",
                   "created": f"20{rng.randint(10, 25)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"}
            line = json.dumps(row, ensure_ascii=False)
            out.write((line[:-7] if fault == "unreadable" else line) + "\n")
    print(json.dumps({"rows": args.rows, **planted}))


if __name__ == "__main__":
    main()
