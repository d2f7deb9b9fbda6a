"""Do PEFT and emberlm read each other's adapters with added tokens, with the same logits and without a warning?

usage: verify_added_tokens.py EMBERLM MODEL_DIR [MODEL_DIR …] [--work DIR] [--steps 6]

For each model (one with a head of its own and one whose head is the embedding, best), in float32 on the CPU:
  ours    emberlm trains an adapter with `model.add_tokens`; PEFT loads it onto the base with its embeddings resized to the
          adapter's tokenizer; logits are compared with `emberlm eval --logits`, and every warning of PEFT is an error
  merged  `emberlm merge` of it, loaded with transformers
  theirs  PEFT makes an adapter with `trainable_token_indices` (random values), emberlm reads it
  full    a full fine-tune with `model.add_tokens`, loaded with transformers
Prints one line a comparison and exits with 1 if one is off by more than 1e-3 of the greatest logit. Needs torch,
transformers, peft and safetensors.
"""
import argparse, json, os, subprocess, sys, tempfile, warnings
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

TOLERANCE = 1e-3
TOKENS = ["<tool>", "</tool>"]
ROWS = [("How hot?", "<tool>gauge</tool> About 1200."), ("How cold?", "<tool>gauge</tool> About 20.")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("emberlm")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--work", default=None)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    work = args.work or tempfile.mkdtemp()
    emberlm = lambda *a: subprocess.run([args.emberlm, *map(str, a)], check=True, stdout=subprocess.PIPE, text=True).stdout
    logging.disable_progress_bar()
    failed = False
    rows = os.path.join(work, "rows.jsonl")
    with open(rows, "w") as out:
        for question, answer in ROWS:
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            out.write(json.dumps({"messages": messages}) + "\n")

    def ours(name, *where):
        path = os.path.join(work, f"{name}.safetensors")
        emberlm("eval", "--json", "--data", rows, "--backend", "flex", "--logits", path, *where)
        tensors = load_file(path)
        numbers = sorted(int(key.split(".")[1]) for key in tensors if key.startswith("logits."))
        return [(tensors[f"input_ids.{n}"].long(), tensors[f"logits.{n}"]) for n in numbers]

    def compare(what, found, model, tokenizer):
        nonlocal failed
        with torch.no_grad():
            expected = [model(input_ids=ids[None]).logits[0].float() for ids, _ in found]
        # The new tokens must be there, or nothing was compared.
        new = set(tokenizer.convert_tokens_to_ids(TOKENS))
        there = all(new <= set(ids.tolist()) for ids, _ in found)
        error = max(((f - e).abs().max() / e.abs().max()).item() for (_, f), e in zip(found, expected))
        bad = not (error <= TOLERANCE and there)
        failed |= bad
        print(f"{'FAILED' if bad else 'ok':7}{what:44}{error:.2e}{'' if there else '  without the new tokens'}", flush=True)

    load = lambda path: AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    train = lambda model, out, *more: emberlm(
        "train", "--quiet", "--model", model, "--data", rows, "--out", out, "--backend", "flex",
        "--set", f"model.add_tokens={json.dumps(TOKENS)}", "--set", f"train.steps={args.steps}",
        "--set", "train.learning_rate=1e-3", *more)
    for path in args.models:
        name = os.path.basename(os.path.normpath(path))
        mine, merged, full, other = (os.path.join(work, f"{name}-{kind}") for kind in ["ours", "merged", "full", "theirs"])

        train(path, mine, "--set", "lora.r=4")
        tokenizer = AutoTokenizer.from_pretrained(mine)
        base = load(path)
        # mean_resizing says something of its own about random numbers; the rows are replaced anyway.
        base.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = PeftModel.from_pretrained(base, mine).eval()
        # What transformers announces of its own future is not about the adapter.
        said = [str(warning.message) for warning in caught if warning.category is not FutureWarning]
        failed |= bool(said)
        print(f"{'FAILED' if said else 'ok':7}{name}: warnings of PEFT: {said}")
        compare(f"{name}: ours", ours(f"{name}-ours", "--model", path, "--adapter", mine), model, tokenizer)

        emberlm("merge", "--model", path, "--adapter", mine, "--out", merged, "--backend", "flex")
        compare(f"{name}: merged", ours(f"{name}-merged", "--model", merged), load(merged), AutoTokenizer.from_pretrained(merged))

        base = load(path)
        tokenizer = AutoTokenizer.from_pretrained(path)
        tokenizer.add_tokens(TOKENS)
        base.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        ids = tokenizer.convert_tokens_to_ids(TOKENS)
        tied = base.config.tie_word_embeddings
        indices = list(reversed(ids)) if tied else {"embed_tokens": ids, "lm_head": ids}
        model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj"], trainable_token_indices=indices, task_type="CAUSAL_LM"))
        torch.manual_seed(0)
        with torch.no_grad():
            for key, value in model.named_parameters():
                if "trainable_tokens_delta" in key or "lora_" in key:
                    value.copy_(torch.randn_like(value) * 0.05)
        with warnings.catch_warnings():
            # What PEFT says of saving a resized embedding beside the rows; emberlm is asked to read what it means.
            warnings.simplefilter("ignore")
            model.save_pretrained(other, save_embedding_layers=False)
        tokenizer.save_pretrained(other)
        compare(f"{name}: theirs", ours(f"{name}-theirs", "--model", path, "--adapter", other), model.eval(), tokenizer)

        # Without a section [lora] in a file, all weights are trained.
        config = os.path.join(work, "full.toml")
        with open(config, "w") as out:
            out.write("[train]\n")
        emberlm("train", config, "--quiet", "--model", path, "--data", rows, "--out", full, "--backend", "flex",
                "--set", f"model.add_tokens={json.dumps(TOKENS)}", "--set", f"train.steps={args.steps}",
                "--set", "train.learning_rate=1e-4")
        compare(f"{name}: full", ours(f"{name}-full", "--model", full), load(full), AutoTokenizer.from_pretrained(full))
    sys.exit(failed)


if __name__ == "__main__":
    main()
