"""Does `emberlm train --tui` leave the terminal as it was, however it ends?

usage: verify_tui.py EMBERLM [ENDING ...]

Runs the built-in example in a pseudo-terminal and ends it: at its end, by q, by Ctrl-C twice, by SIGTERM twice, by a
folder that can't be written. Each time the terminal's settings must be as before, the alternate screen left and the
cursor shown. Exits with 1 if one isn't so. Needs nothing but Python.
"""
import fcntl, os, pty, select, signal, struct, subprocess, sys, tempfile, termios, time

ENTER, LEAVE, SHOW, HIDE = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?25l"


def run(emberlm, ending):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    before = termios.tcgetattr(slave)
    with tempfile.TemporaryDirectory() as place:
        steps = "20" if ending == "end" else "100000"
        out = os.path.join(place, "run")
        if ending == "error":
            open(out, "w").write("a file where the folder should be")
        process = subprocess.Popen(
            [emberlm, "train", "--tui", "--out", out, "--set", f"train.steps={steps}"],
            stdin=slave, stdout=slave, stderr=slave, cwd=place, start_new_session=True)
        seen, since, sent, last = b"", time.time(), 0, 0.0
        while process.poll() is None and time.time() - since < 120:
            if select.select([master], [], [], 0.1)[0]:
                seen += os.read(master, 65536)
            drawn = b"steps" in seen and b"left" in seen
            if drawn and ending not in ("end", "error") and sent < 2 and time.time() - last > 0.3:
                if ending == "q" and sent == 1:
                    continue
                if ending == "term":
                    process.send_signal(signal.SIGTERM)
                else:
                    os.write(master, b"q" if ending == "q" else b"\x03")
                sent, last = sent + 1, time.time()
        while select.select([master], [], [], 0.3)[0]:
            seen += os.read(master, 65536)
        code = process.poll()
        process.poll() is None and process.kill()
    after = termios.tcgetattr(slave)
    faults = []
    if code is None:
        faults.append("did not end")
    if before[:4] != after[:4]:
        faults.append("settings of the terminal differ")
    if seen.rfind(LEAVE) < seen.rfind(ENTER) or ENTER not in seen:
        faults.append("the alternate screen was not left")
    if seen.rfind(SHOW) < seen.rfind(HIDE):
        faults.append("the cursor is hidden")
    if ending == "error" and b"error:" not in seen[seen.rfind(LEAVE):]:
        faults.append("the error is not on the terminal")
    expected = {"end": {0}, "q": {0}, "ctrl-c": {0, 130}, "term": {0, 130}, "error": {1}}[ending]
    if code not in expected:
        faults.append(f"exit code {code}")
    print(f"{ending:8} exit code {code}: {'; '.join(faults) or 'the terminal is as it was'}")
    return not faults


def main():
    emberlm, endings = os.path.abspath(sys.argv[1]), sys.argv[2:] or ["end", "q", "ctrl-c", "term", "error"]
    sys.exit(0 if all([run(emberlm, ending) for ending in endings]) else 1)


if __name__ == "__main__":
    main()
