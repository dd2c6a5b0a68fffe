// Made of the controller's declarations by docs/generate.py.

/** Where a kernel's GPU state is; `queued` waits for room. */
export type Residency = 'none' | 'resident' | 'parking' | 'parked' | 'queued' | 'resuming' | 'lost';

/** Why bytes stay on the GPU. */
export type UnmovableReason =
  | 'small'
  | 'managed'
  | 'mapped'
  | 'pool'
  | 'array'
  | 'shared'
  | 'unbacked'
  | 'integrated'
  | 'device';

/** What a CUDA call does. */
export type CallClass = 'host' | 'query' | 'free' | 'launch' | 'copy' | 'alloc' | 'sync' | 'module';

/** Why a process can make no progress any more. */
export type StuckReason =
  'lost' | 'resume-failed' | 'gpu-gone' | 'gpu-too-small' | 'peer-gone' | 'parent-gone' | 'stopped';

/** Why a kernel waits for the GPU. */
export type WaitReason =
  | 'turn'
  | 'full'
  | 'computing'
  | 'compute'
  | 'held'
  | 'host-memory'
  | 'moving'
  | 'limit'
  | 'too-large'
  | 'starting'
  | 'retry'
  | 'others-first'
  | 'outside'
  | 'ending';

/** Why the memory that a waiter needs is not free. */
export type BlockerReason = 'computing' | 'held' | 'idle' | 'opted-out' | 'moving' | 'outside';

/** Why a kernel's CUDA context stays on the GPU when it is parked. */
export type DepthRefusal =
  'not-asked' | 'several-processes' | 'several-gpus' | 'not-seen' | 'stranger' | 'failed';

/** Why a kernel's residency changed last. */
export type Cause =
  | 'other'
  | 'asked'
  | 'room'
  | 'low-memory'
  | 'idle'
  | 'time-slice'
  | 'limit'
  | 'full'
  | 'cell'
  | 'split'
  | 'undone'
  | 'prefetch'
  | 'failed'
  | 'too-large'
  | 'failed-again';

/** What a notice is about. */
export type NoticeKind =
  | 'made-room'
  | 'moved'
  | 'refused'
  | 'no-room'
  | 'resume-failed'
  | 'stuck'
  | 'ended'
  | 'memory-low'
  | 'host-memory-low';

/** Why a request is refused, for programs. */
export type Refusal =
  | 'bad-request'
  | 'bad-setting'
  | 'not-found'
  | 'not-allowed'
  | 'gone'
  | 'internal'
  | 'bad-grant'
  | 'grant-required'
  | 'forbidden'
  | 'too-many-requests'
  | 'too-many-streams'
  | 'too-many-kernels'
  | 'hold-quota'
  | 'unknown-kernel'
  | 'unknown-process'
  | 'not-stuck'
  | 'out-of-reach'
  | 'no-ledger'
  | 'busy'
  | 'nothing-to-move'
  | 'not-parkable'
  | 'older-kernel'
  | 'older-controller'
  | 'no-host-memory'
  | 'no-gpu-room'
  | 'too-late'
  | 'failed'
  | 'refused'
  | 'lost'
  | 'kernel-ended'
  | 'park-asked'
  | 'cancelled'
  | 'waits-for-gpu';
