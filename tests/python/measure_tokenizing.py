"""Rows to tokens with label masks: emberlm beside `datasets.map(batched=True)`, with the same tokenizer and file.

usage: measure_tokenizing.py PROGRAM MODEL FILE.jsonl [--repeat 3] [--processes 1 2]

PROGRAM is the example `tokenizing` of the data crate (cargo build --release -p emberlm-data --example tokenizing). FILE
holds rows of `messages`, or of `question` and `answer`. For each number of processes the best of some runs is taken: PROGRAM
with so many threads; `datasets.map` with `apply_chat_template` and with so many processes, once for the tokens alone and
once with the mask of the assistant's tokens, if the template marks them (else the mask is left out there, and emberlm still
makes its own). Tokens must be the same in number. The time of the processors is shown beside that of the clock: on a machine that
does other things too it is the one to compare. (PROGRAM's has all in it, from loading the tokenizer on.) Needs transformers
and datasets.
"""
import argparse, json, os, resource, subprocess, sys, tempfile, time


def cpu():
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


def messages(batch):
    if "messages" in batch:
        return batch["messages"]
    pairs = zip(batch["question"], batch["answer"])
    return [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in pairs]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("file")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()

    import datasets, transformers

    datasets.disable_progress_bars()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    marks = "{% generation" in (tokenizer.chat_template or "") or "{%- generation" in (tokenizer.chat_template or "")

    def tokens(batch):
        ids = tokenizer.apply_chat_template(messages(batch), return_dict=True)["input_ids"]
        return {"input_ids": ids}

    def tokens_and_mask(batch):
        made = tokenizer.apply_chat_template(messages(batch), return_dict=True, return_assistant_tokens_mask=True)
        return {"input_ids": made["input_ids"], "assistant_masks": made["assistant_masks"]}

    def run_datasets(function, processes):
        with tempfile.TemporaryDirectory() as cache:
            rows = datasets.load_dataset("json", data_files=args.file, split="train", cache_dir=cache)
            started, before = time.monotonic(), cpu()
            made = rows.map(function, batched=True, remove_columns=rows.column_names, load_from_cache_file=False,
                            num_proc=processes if processes > 1 else None)
            seconds, used = time.monotonic() - started, cpu() - before
            return seconds, used, sum(len(ids) for ids in made["input_ids"]), len(made)

    def run_emberlm(processes):
        env = {**os.environ, "RAYON_NUM_THREADS": str(processes)}
        before = cpu()
        made = json.loads(subprocess.run([args.program, args.model, args.file], check=True, env=env,
                                         stdout=subprocess.PIPE, text=True).stdout)
        return made["seconds"], cpu() - before, made["tokens"], made["rows"]

    wrong = 0
    for processes in args.processes:
        # The tokenizers library has threads of its own: without them the comparison is core by core.
        os.environ["TOKENIZERS_PARALLELISM"] = "false" if processes == 1 else "true"
        runs = {"emberlm": lambda: run_emberlm(processes),
                "datasets.map, tokens": lambda: run_datasets(tokens, processes)}
        if marks:
            runs["datasets.map, tokens and mask"] = lambda: run_datasets(tokens_and_mask, processes)
        best = {}
        for name, run in runs.items():
            made = [run() for _ in range(args.repeat)]
            best[name] = seconds, used, count, rows = [min(values) for values in zip(*made)]
            print(f"{processes} at once, {name}: {seconds:.2f} s, {used:.2f} s of processors, {rows / seconds:.0f} rows/s, "
                  f"{count / seconds / 1e6:.2f} M tokens/s ({rows} rows, {count} tokens)", flush=True)
        counts = {count for _, _, count, _ in best.values()}
        if len(counts) != 1:
            wrong += 1
            print(f"WRONG: other numbers of tokens: {sorted(counts)}")
        ratios = [theirs / ours for theirs, ours in zip(best["datasets.map, tokens"], best["emberlm"])]
        print(f"{processes} at once: emberlm is {ratios[0]:.1f} times as fast as datasets.map without a mask, and takes "
              f"1/{ratios[1]:.1f} of its processor time")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
