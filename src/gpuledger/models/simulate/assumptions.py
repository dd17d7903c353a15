"""What the model assumes, what it was fitted to, what it cannot show."""

#: Markdown, for the notebooks that show simulated numbers.
ASSUMPTIONS = """\
**These traces are simulated, not measured.** A model of a GPU and of kernels wrote what the probes would record.

*The machine* has 108 SMs (7 or 8 for traces that hold records of every thread). Blocks are dispatched in the order of
the grid: the first wave goes round the SMs, after that each block takes the slot that falls free first and starts 200
to 400 cycles later. Every SM counts cycles from an origin of its own. SMs do not influence one another.

*A block* has a prologue, a loop and an epilogue. An iteration takes a fixed time and an exponentially distributed wait.
Where two blocks share an SM, first come is first served: the older runs at one speed, the younger at a lower one until
the older ends. The warps of a block start and end within a few cycles of one another.

*Fitted to published numbers*, therefore no evidence for them:

* the run time of the fill and the mean gap, to Running 602,241 and Scheduling 87,713 cycles per SM as Neutrino's own
  estimator prints them; it finds that Scheduling only when blocks run almost equally long, so here they vary by 1 %;
* the run time of the persistent fill, to 24,891 ns (Sec. 4.6);
* mean and spread of an iteration of four kernels, to Fig. 14A, 14B, 17A and 17B;
* in FlashAttention-v2 with shared blocks the speed of the younger block, 0.765 of the older's;
* in the GEMM with shared blocks the speeds of the older block (0.88 of one alone) and of the younger (0.47), and a
  first wave that needs 4 % more.

Every printed percentile is met within 1 %. What hangs on single blocks is less sure: between the fastest and the
slowest warp of the exclusive FlashAttention-v2 lie 9.6 % here and 8.2 % in Fig. 14A.

*Put in, and so not found*: that a block speeds up when the older one ends (the paper's reading of Fig. 14C), and which
kernel touches what when. Figures of these traces show such things because the model was told so.

*A test of the model*, because fewer numbers go in than come out: first come, first served with three fitted numbers
(work of a block, its spread, speed of the younger block) gives all six printed percentiles of Fig. 14B within 1 %,
and kinks between a fifth and four fifths of a block's run. But the speeds read off Fig. 14C (about 1.8 and 2.2) have
a ratio of 0.82, not 0.765, and those of the GEMM (about 5 and 7.5) one of 0.67, where the fit needs 0.53: the model
does not explain this difference. The timelines come with the starts and ends of the same launch, as if two probes had
watched it at once.

*Memory accesses* follow the description of each kernel: which tile of which tensor is loaded when. Sequence, keys of a
tile and heads are scaled down together (512 tokens; 49 or 25 heads), so that a head of keys is one page of 64 KiB and
a trace has at most 33 MB. When in an iteration a tile is loaded, and over how much of it, was chosen by eye after the
published figures.

*What it cannot show*: why anything takes as long as it does. There are no caches, no memory system, no instruction
pipelines, no changes of clock and no cost of probing; waits are random and do not depend on what others load. It says
nothing of the absolute cycles of the memory maps, of single late blocks, of the two bursts of output in Fig. 11a, or
of any kernel, shape or GPU but those named.
"""
