"""Do TensorBoard and transformers read what emberlm writes into a run folder?

usage: verify_run_folder.py RUN [--state FILE]

Reads RUN/tensorboard with TensorBoard's own reader, which checks every checksum, and compares each value with
RUN/metrics.jsonl. Reads trainer_state.json (of RUN, or FILE) with transformers' TrainerState, if there is one.
Exits with 1 if something differs. Needs tensorboard, and transformers for the state.
"""
import argparse, glob, json, os, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto import event_pb2

TAGS = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/learning_rate": "learning_rate",
        "train/epoch": "epoch", "eval/loss": "eval_loss", "eval/perplexity": "eval_perplexity"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--state", default=None)
    args = parser.parse_args()
    rows = [json.loads(line) for line in open(os.path.join(args.run, "metrics.jsonl"))]
    wrong = 0

    folder = os.path.join(args.run, "tensorboard")
    files = sorted(glob.glob(os.path.join(folder, "events.out.tfevents.*")))
    for path in files:
        events = [event_pb2.Event.FromString(raw) for raw in RawEventFileLoader(path).Load()]
        assert events[0].file_version == "brain.Event:2", events[0]
        assert all(event.wall_time > 1.7e9 for event in events)
        print(f"{os.path.basename(path)}: {len(events)} events")
    curves = EventAccumulator(folder, size_guidance={"scalars": 0})
    curves.Reload()
    for tag, key in TAGS.items():
        expected = [(row["step"], row[key]) for row in rows if key in row]
        if not expected:
            continue
        found = [(event.step, event.value) for event in curves.Scalars(tag)]
        same = len(found) == len(expected) and all(
            a == b and abs(x - y) <= 1e-6 * max(abs(y), 1e-30) for (a, x), (b, y) in zip(found, expected))
        wrong += not same
        print(f"{tag:24} {len(found)} values, {'as in metrics.jsonl' if same else 'NOT as in metrics.jsonl'}")

    state = args.state or os.path.join(args.run, "trainer_state.json")
    if os.path.exists(state):
        from transformers import TrainerState
        loaded = TrainerState.load_from_json(state)
        steps = [row for row in rows if "loss" in row]
        same = loaded.global_step == steps[-1]["step"] and any("loss" in log for log in loaded.log_history)
        again = state + ".again"
        loaded.save_to_json(again)
        same &= json.load(open(again)) == json.load(open(state))
        os.remove(again)
        wrong += not same
        print(f"trainer_state.json       {len(loaded.log_history)} logs, {'as transformers has it' if same else 'NOT as transformers has it'}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
