"""Timelines that tests make by hand, in the form of torch.profiler's."""

import json


class Recording:
    """A hand-made trace: kernels one after the other, each launched a little before it runs."""

    def __init__(self):
        self.events, self.now, self.number = [], 100.0, 0

    def host(self, cat, name, start, duration, **args):
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": duration, "args": args}
        )

    def kernel(self, name, duration, pause=1.0, stream=7, launched=True, operator="", shapes=None, start=None):
        self.number += 1
        self.now += pause
        start = self.now if start is None else start
        if launched:
            if operator:
                inputs = {"Input Dims": shapes or [], "Input type": ["c10::BFloat16"] * len(shapes or [])}
                self.host("cpu_op", operator, start - 0.9, 0.8, **{"External id": self.number}, **inputs)
            self.host("cuda_runtime", "cudaLaunchKernel", start - 0.8, 0.5, correlation=self.number)
        place = {"device": 0, "stream": stream, "correlation": self.number}
        if operator:
            place["External id"] = self.number
        event = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start}
        self.events.append(event | {"dur": duration, "args": place})
        self.now = max(self.now, start + duration)

    def write(self, folder, name="trace.json"):
        (folder / name).write_text(json.dumps({"traceEvents": self.events}), "utf-8")
        return folder / name
