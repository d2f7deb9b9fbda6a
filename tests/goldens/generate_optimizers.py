"""Golden values for optimizers and schedules, from PyTorch and transformers; for Lion from its paper.

usage: generate_optimizers.py OUT_DIR
Writes rules.safetensors, rules.json and schedules.json. Every value is computed in float32 on the CPU. Muon is PyTorch's, with
its Newton-Schulz iteration in float32 where PyTorch takes bfloat16.
"""
import inspect, json, os, sys
import torch, transformers
import torch.optim._muon as muon_module
from safetensors.torch import save_file
from transformers import optimization as hf

OUT = sys.argv[1]
STEPS, KEPT, SEEDS = 10, [1, 2, 5, 10], [1, 2]
SHAPES = dict(wide=(12, 20), tall=(20, 12), vector=(24,))
LRS = [1e-2 * (s + 1) / 2 if s < 2 else 1e-2 * (1 - (s - 2) / STEPS) for s in range(STEPS)]
VERSIONS = dict(torch=torch.__version__, transformers=transformers.__version__)

source = inspect.getsource(muon_module._zeropower_via_newtonschulz)
assert source.count("torch.bfloat16") == 1
exec(source.replace("torch.bfloat16", "torch.float32"), muon_module.__dict__)


class Lion(torch.optim.Optimizer):
    """Chen et al., 2023, arXiv:2302.06675, algorithm 2."""
    def __init__(self, params, betas, weight_decay):
        super().__init__(params, dict(lr=0.0, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                c = beta1 * m + (1 - beta1) * p.grad
                p.sub_(group["lr"] * (c.sign() + group["weight_decay"] * p))
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def each(make):
    return lambda params: [make(list(params.values()))]

def muon(**kw):
    """Matrices by Muon, the rest by AdamW."""
    def make(params):
        matrices = [p for p in params.values() if p.ndim == 2]
        rest = [p for p in params.values() if p.ndim != 2]
        return [torch.optim.Muon(matrices, lr=1e-2, **kw), torch.optim.AdamW(rest, betas=(0.9, 0.95), eps=1e-8, weight_decay=kw["weight_decay"])]
    return make

ADAMW = dict(betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
ADAFACTOR = dict(eps=(1e-30, 1e-3), decay_rate=-0.8, beta1=None, scale_parameter=False, relative_step=False, warmup_init=False)
RULES = {
    "adamw": each(lambda p: torch.optim.AdamW(p, **ADAMW)),
    "lion": each(lambda p: Lion(p, betas=(0.9, 0.99), weight_decay=0.1)),
    "sgd": each(lambda p: torch.optim.SGD(p, lr=1e-2, weight_decay=0.1)),
    "sgd_momentum": each(lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.1)),
    "sgd_nesterov": each(lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.8, nesterov=True)),
    "adafactor": each(lambda p: hf.Adafactor(p, lr=1e-2, clip_threshold=1.0, weight_decay=0.1, **ADAFACTOR)),
    "adafactor_clipped": each(lambda p: hf.Adafactor(p, lr=1e-2, clip_threshold=0.5, **ADAFACTOR)),
    "muon_original": muon(momentum=0.95, nesterov=True, weight_decay=0.1, adjust_lr_fn="original"),
    "muon_match_rms": muon(momentum=0.9, nesterov=False, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
}

def rules():
    tensors = {}
    for seed in SEEDS:
        g = torch.Generator().manual_seed(seed)
        start = {k: torch.randn(s, generator=g) * 0.05 for k, s in SHAPES.items()}
        grads = {k: torch.randn((STEPS, *s), generator=g) for k, s in SHAPES.items()}
        # Sizes far apart, a row that never has a gradient, and larger gradients at one step.
        for k in grads:
            grads[k] *= torch.logspace(-3, -1, SHAPES[k][0]).reshape(-1, *[1] * (len(SHAPES[k]) - 1))
            grads[k][:, 3] = 0.0
            grads[k][6] *= 10
        for k in SHAPES:
            tensors[f"{seed}.start.{k}"], tensors[f"{seed}.grad.{k}"] = start[k], grads[k]
        for name, make in RULES.items():
            params = {k: torch.nn.Parameter(v.clone()) for k, v in start.items()}
            optimizers, kept = make(params), {k: [] for k in params}
            for s in range(STEPS):
                for k, p in params.items(): p.grad = grads[k][s].clone()
                for optimizer in optimizers:
                    for group in optimizer.param_groups: group["lr"] = LRS[s]
                    optimizer.step()
                if s + 1 in KEPT:
                    for k, p in params.items(): kept[k].append(p.detach().clone())
            for k, v in kept.items(): tensors[f"{seed}.{name}.{k}"] = torch.stack(v)
    save_file(tensors, f"{OUT}/rules.safetensors")
    json.dump(dict(versions=VERSIONS, seeds=SEEDS, steps=STEPS, kept=KEPT, lr=LRS, rules=list(RULES)), open(f"{OUT}/rules.json", "w"), indent=1)

def schedules():
    """Rates by step as share of the peak, from step 0 on, two steps past the end."""
    rows = []
    def add(function, **arguments):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        steps = arguments.pop("total", None) or arguments["num_training_steps"]
        scheduler = getattr(hf, function)(optimizer, **arguments)
        rates = []
        for _ in range(steps + 2):
            rates.append(scheduler.get_last_lr()[0]); optimizer.step(); scheduler.step()
        rows.append(dict(function=function, arguments=arguments, steps=steps, rates=rates))
    for warmup in (0, 4):
        add("get_constant_schedule_with_warmup", num_warmup_steps=warmup, total=20)
        add("get_linear_schedule_with_warmup", num_warmup_steps=warmup, num_training_steps=20)
        add("get_cosine_schedule_with_warmup", num_warmup_steps=warmup, num_training_steps=20)
        add("get_cosine_with_min_lr_schedule_with_warmup", num_warmup_steps=warmup, num_training_steps=20, min_lr_rate=0.1)
        for power in (1.0, 2.0, 0.5):
            add("get_polynomial_decay_schedule_with_warmup", num_warmup_steps=warmup, num_training_steps=20, lr_end=0.05, power=power)
        add("get_inverse_sqrt_schedule", num_warmup_steps=warmup, total=20)
        for decay_type in ("linear", "1-sqrt", "cosine"):
            add("get_wsd_schedule", num_warmup_steps=warmup, num_decay_steps=6, num_training_steps=20, decay_type=decay_type, min_lr_ratio=0.1)
    json.dump(dict(versions=VERSIONS, schedules=rows), open(f"{OUT}/schedules.json", "w"), indent=1)

os.makedirs(OUT, exist_ok=True)
rules(); schedules()
