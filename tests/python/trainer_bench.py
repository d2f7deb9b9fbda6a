"""What a user would run instead: transformers' Trainer + PEFT on question/answer rows, with the usual padding collator.

usage: trainer_bench.py MODEL_DIR DATA.jsonl [--micro-batch 8] [--steps 6] [--rank 16] [--max-length 512] [--threads 2]
       trainer_bench.py --emberlm RUN_DIR/metrics.jsonl [--steps 6]     reads emberlm's own log of the same job

Prompts are masked, every linear layer has an adapter, no packing, no gradient checkpointing. Prints one JSON line; the
first step is left out, the rate is that of the median step.
"""
import argparse, json, resource, time


def emberlm(path, steps):
    rows = [json.loads(line) for line in open(path)]
    rows = [row for row in rows if "loss" in row][1 : steps + 1]
    seconds = [row["tokens"] / row["tokens_per_s"] for row in rows]
    report("emberlm", [row["supervised_tokens"] for row in rows], seconds, rows[-1].get("peak_memory_mib"))


def report(tool, supervised, seconds, peak):
    rates = sorted(n / s for n, s in zip(supervised, seconds))
    print(json.dumps(dict(tool=tool, supervised_tokens_per_s=round(rates[len(rates) // 2], 1),
                          step_s=[round(s, 3) for s in seconds], peak_rss_mib=peak)))


def trainer(args):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import (AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainerCallback,
                              TrainingArguments)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="sdpa")
    model.config.use_cache = False
    model = get_peft_model(model, LoraConfig(r=args.rank, lora_alpha=2 * args.rank, task_type="CAUSAL_LM",
                                             target_modules="all-linear"))

    def tokens(row):
        user = [{"role": "user", "content": row["question"]}]
        ids = lambda messages, prompt: tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True,
                                                                     add_generation_prompt=prompt)["input_ids"]
        prompt = ids(user, True)
        whole = ids(user + [{"role": "assistant", "content": row["answer"]}], False)[: args.max_length]
        return dict(input_ids=whole, labels=[-100] * len(prompt) + whole[len(prompt):])

    rows = [json.loads(line) for line, _ in zip(open(args.data), range((args.steps + 1) * args.micro_batch))]
    rows = [tokens(row) for row in rows]
    started, seconds, supervised = [], [], []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__):
            started.append(time.time())

        def on_step_end(self, *_, **__):
            seconds.append(time.time() - started[-1])

    collate = DataCollatorForSeq2Seq(tokenizer, padding=True, label_pad_token_id=-100)

    def counted(batch):
        supervised.append(sum(sum(1 for label in row["labels"][1:] if label != -100) for row in batch))
        return collate(batch)

    settings = TrainingArguments(output_dir="trainer-out", per_device_train_batch_size=args.micro_batch,
                                 max_steps=args.steps + 1, learning_rate=2e-4, logging_strategy="no", save_strategy="no",
                                 report_to=[], use_cpu=True, remove_unused_columns=False)
    Trainer(model=model, args=settings, train_dataset=rows, data_collator=counted, callbacks=[Clock()]).train()
    report("transformers Trainer + PEFT", supervised[1 : args.steps + 1], seconds[1:],
           resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("data", nargs="?")
    parser.add_argument("--emberlm")
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    emberlm(args.emberlm, args.steps) if args.emberlm else trainer(args)
