// Made of the controller's declarations by docs/generate.py.

/** Where a kernel's GPU state is; `queued` waits for room. */
export type Residency = 'none' | 'resident' | 'parking' | 'parked' | 'queued' | 'resuming' | 'lost';

/** Why bytes stay on the GPU. */
export type UnmovableReason =
  'small' | 'managed' | 'mapped' | 'pool' | 'array' | 'shared' | 'unbacked' | 'device';

/** Why a process can make no progress any more. */
export type StuckReason =
  'lost' | 'resume-failed' | 'gpu-gone' | 'gpu-too-small' | 'peer-gone' | 'parent-gone' | 'stopped';

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
