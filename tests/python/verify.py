"""Does what emberlm writes mean the same to transformers and PEFT?

usage: verify.py EMBERLM MODEL_DIR DATA_FILE [--steps 30] [--backend flex] [--work DIR]

Trains an adapter with EMBERLM (the binary), then compares logits on the first rows of DATA_FILE:
  base      emberlm eval --logits                against transformers
  adapter   emberlm eval --adapter --logits      against PEFT
  merged    emberlm merge, its folder            loaded by transformers, and by emberlm
Prints one line a comparison and exits with 1 if one is off by more than 1e-4 of the greatest logit.
Needs torch, transformers, peft and safetensors.
"""
import argparse, json, os, subprocess, sys, tempfile
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

TOLERANCE = 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("emberlm")
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--backend", default="flex")
    parser.add_argument("--work", default=None)
    args = parser.parse_args()
    work = args.work or tempfile.mkdtemp()
    run, merged = os.path.join(work, "run"), os.path.join(work, "merged")
    emberlm = lambda *a: subprocess.run([args.emberlm, *map(str, a)], check=True, stdout=subprocess.PIPE, text=True).stdout
    common = ["--backend", args.backend]

    emberlm("train", "--model", args.model, "--data", args.data, "--out", run, *common, "--quiet",
            "--set", f"train.steps={args.steps}", "--set", "train.overwrite=true",
            "--set", "data.max_length=256", "--set", "train.recompute=block")

    def ours(name, model, adapter=None):
        path = os.path.join(work, f"{name}.safetensors")
        report = json.loads(emberlm("eval", "--json", "--model", model, "--data", args.data, "--limit", 4,
                                    "--max-length", 256, "--logits", path, *common,
                                    *(["--adapter", adapter] if adapter else [])))
        tensors = load_file(path)
        rows = sorted(int(key.split(".")[1]) for key in tensors if key.startswith("logits."))
        return [(tensors[f"input_ids.{n}"].long(), tensors[f"logits.{n}"]) for n in rows], report["loss"]

    @torch.no_grad()
    def theirs(model, rows):
        return [model(input_ids=ids[None]).logits[0].float() for ids, _ in rows]

    worst = 0.0
    def compare(name, rows, reference):
        nonlocal worst
        error = max(((a - b).abs().max() / b.abs().max()).item() for (_, a), b in zip(rows, reference))
        worst = max(worst, error)
        print(f"{name:48} {len(rows)} rows, relative error of the logits {error:.1e}")

    load = lambda folder: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    base = load(args.model)
    rows, loss_before = ours("base", args.model)
    compare("base: emberlm, transformers", rows, theirs(base, rows))

    rows, loss_after = ours("adapter", args.model, run)
    adapted = PeftModel.from_pretrained(base, run).eval()
    reference = theirs(adapted, rows)
    compare("adapter: emberlm, PEFT", rows, reference)

    print(emberlm("merge", "--model", args.model, "--adapter", run, "--out", merged, "--dtype", "f32", "--force", *common).strip()
          .replace(merged, "MERGED"))
    AutoTokenizer.from_pretrained(merged)
    compare("merged folder in transformers, emberlm + adapter", rows, theirs(load(merged), rows))
    merged_rows, loss_merged = ours("merged", merged)
    compare("merged folder in emberlm, PEFT", merged_rows, reference)
    print(f"loss on these rows: {loss_before:.4f} before, {loss_after:.4f} with the adapter, {loss_merged:.4f} merged")
    sys.exit(0 if worst <= TOLERANCE else f"off by more than {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
