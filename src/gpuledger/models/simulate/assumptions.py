"""What the simulation assumes, what it was fitted to, and what it cannot show."""

#: Markdown for notebooks that show simulated numbers.
ASSUMPTIONS = """\
**These traces are simulated, not measured.** A model of a GPU and of its kernels generated what the probes would
record.

*The machine* has 108 SMs (68 for memory accesses). Blocks are dispatched in grid order: the first wave is distributed
round-robin over the SMs; after that, each block takes the first slot that becomes free and starts 200 to 400 cycles
later. Every SM has its own clock origin. SMs do not influence one another.

*A block* has a prologue, a loop and an epilogue. An iteration takes a fixed time plus an exponentially distributed
wait. Two blocks on the same SM are served first come, first served: the older block runs at one speed, the younger at
a lower one until the older ends. The warps of a block start and end within a few cycles of one another.

*Fitted to published numbers*, and therefore no evidence for them:

* run time of the fill and the mean gap: to Running 602,241 and Scheduling 87,713 cycles per SM as Neutrino's own
  estimator prints them. The estimator only finds that Scheduling if blocks run almost equally long, so here their run
  times vary by 1 %;
* run time of the persistent fill: to 24,891 ns (Sec. 4.6);
* mean and spread of an iteration of four kernels: to Fig. 14A, 14B, 17A and 17B;
* FlashAttention-v2 with shared blocks: the speed of the younger block, 0.765 of the older's;
* GEMM with shared blocks: the speeds of the older block (0.88 of a block alone) and of the younger (0.47), and a first
  wave that takes 4 % longer.

All printed percentiles agree within 1 %. Values that depend on single blocks are less certain: the fastest and the
slowest warp of the exclusive FlashAttention-v2 differ by 9.6 % here and by 8.2 % in Fig. 14A.

*Put in by construction, not found*: that a block speeds up when the older one ends (the paper's explanation of
Fig. 14C), and which kernel accesses what when. Figures of these traces show such effects because the model contains
them.

*A test of the model*, with fewer inputs than outputs: first come, first served with three fitted numbers (work of a
block, its spread, speed of the younger block) gives all six printed percentiles of Fig. 14B within 1 %, and the kinks
lie between a fifth and four fifths of a block's run. But the speeds read from Fig. 14C (about 1.8 and 2.2) have a
ratio of 0.82, not 0.765, and those of the GEMM (about 5 and 7.5) a ratio of 0.67, where the fit needs 0.53: the model
does not explain this difference. The timelines and the starts and ends are those of the very launch that fits Fig. 14B,
as if two probes had recorded it at once; clocks of branches are saved once per warp, where Neutrino's probe saves them
once per thread.

*Memory accesses* follow the description of each kernel: which tile of which tensor is loaded when. Tensors have the
published size (4×32×2048×128, 4,112 pages of 64 KiB with the softmax statistics), tiles have 64 keys (256 in
FlashAttention-v1), as the stripes of Fig. 1 and 11b suggest. When in an iteration a tile is loaded, and over how much
of it the loads spread, was chosen by eye from the published figures; so was the share of blocks that are never slowed
by a neighbour (12 % and 20 %), which gives the output its two bursts in Fig. 11a and 11c. That these bursts lie about
where they are published, and that accesses become dense half way, follows from first come, first served with the speed
fitted to Fig. 14B. A warp's loads of a tile share a few clocks, so that a map has at most 25 MB.

*What it cannot show*: why anything takes as long as it does. There are no caches, no memory system, no instruction
pipelines, no clock changes and no probing cost; waits are random and do not depend on other loads. It says nothing
about the absolute cycles of the memory maps, single late blocks, or kernels, shapes and GPUs other than those named.
"""
