"""Do emberlm and transformers + bitsandbytes read each other's quantized checkpoints, with the same logits?

usage: verify_quantized.py EMBERLM MODEL_DIR DATA_FILE [--types nf4 fp4 int8] [--work DIR]

For each type, on the first rows of DATA_FILE, in float32 on the CPU:
  ours    `emberlm quantize` writes, transformers loads      compared with `emberlm eval --logits` on the same folder
  theirs  transformers quantizes and saves, emberlm loads    compared with transformers
  bytes   the packed weights of both folders are the same
Prints one line a comparison and exits with 1 if one is off by more than 1e-3 of the greatest logit.

int8 is compared with the weights' dequantized values: LLM.int8 also rounds activations to 8 bits, which emberlm doesn't.
Needs torch, transformers, bitsandbytes, accelerate and safetensors.
"""
import argparse, json, os, subprocess, sys, tempfile
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from transformers.utils import logging

TOLERANCE = 1e-3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("emberlm")
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--types", nargs="+", default=["nf4", "fp4", "int8"])
    parser.add_argument("--work", default=None)
    args = parser.parse_args()
    work = args.work or tempfile.mkdtemp()
    emberlm = lambda *a: subprocess.run([args.emberlm, *map(str, a)], check=True, stdout=subprocess.PIPE, text=True).stdout
    failed = False
    logging.disable_progress_bar()

    def ours(name, model):
        path = os.path.join(work, f"{name}.safetensors")
        emberlm("eval", "--json", "--model", model, "--data", args.data, "--limit", 2, "--max-length", 128, "--logits", path)
        tensors = load_file(path)
        rows = sorted(int(key.split(".")[1]) for key in tensors if key.startswith("logits."))
        return [(tensors[f"input_ids.{n}"].long(), tensors[f"logits.{n}"]) for n in rows]

    def theirs(model, rows):
        # bitsandbytes' fast path for inference computes in bfloat16; it is not taken where a gradient is wanted.
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        model.get_input_embeddings().weight.requires_grad_(True)
        return [model(input_ids=ids[None]).logits[0].float().detach() for ids, _ in rows]

    def compare(what, found, expected):
        nonlocal failed
        error = max(((f - e).abs().max() / e.abs().max()).item() for (_, f), e in zip(found, expected))
        bad = not error <= TOLERANCE
        failed |= bad
        print(f"{'FAILED' if bad else 'ok':7}{what:24}{error:.2e}", flush=True)

    def dense(model):
        """The same model with every int8 layer's weight as numbers."""
        import bitsandbytes as bnb
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, bnb.nn.Linear8bitLt):
                    scales = child.weight.SCB if child.weight.SCB is not None else child.state.SCB
                    codes = child.weight.CB if child.weight.CB is not None else child.weight.data
                    layer = torch.nn.Linear(child.in_features, child.out_features, bias=child.bias is not None)
                    layer.weight.data = codes.float() * scales.float()[:, None] / 127
                    if child.bias is not None:
                        layer.bias.data = child.bias.data.float()
                    setattr(parent, name, layer)
        return model

    for kind in args.types:
        mine, other = os.path.join(work, f"{kind}-emberlm"), os.path.join(work, f"{kind}-transformers")
        emberlm("quantize", "--model", args.model, "--out", mine, "--type", kind)
        rows = ours(f"{kind}-ours", mine)
        load = lambda *a, **k: AutoModelForCausalLM.from_pretrained(*a, dtype=torch.float32, device_map="cpu", **k)
        finish = dense if kind == "int8" else lambda model: model
        compare(f"{kind}: ours", rows, theirs(finish(load(mine)), rows))

        if kind == "int8":
            config = BitsAndBytesConfig(load_in_8bit=True)
        else:
            config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=True,
                                        bnb_4bit_compute_dtype=torch.float32)
        model = load(args.model, quantization_config=config)
        model.save_pretrained(other)
        AutoTokenizer.from_pretrained(args.model).save_pretrained(other)
        rows = ours(f"{kind}-theirs", other)
        compare(f"{kind}: theirs", rows, theirs(finish(load(other)), rows))

        a, b = (load_file(os.path.join(folder, "model.safetensors")) for folder in (mine, other))
        packed = [key for key in a if a[key].dtype in (torch.uint8, torch.int8) and ".quant_state." not in key]
        differing = [key for key in packed if key not in b or not torch.equal(a[key].reshape(-1), b[key].reshape(-1))]
        failed |= bool(differing)
        print(f"{'FAILED' if differing else 'ok':7}{kind + ': bytes':24}{len(differing)} of {len(packed)} differ {differing[:3]}", flush=True)
        missing = sorted(set(b) ^ set(a))
        print(f"       {kind + ': keys':24}{len(missing)} in one folder only {missing[:4]}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
