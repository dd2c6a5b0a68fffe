// Made of node/api/openapi.json by docs/generate.py.

export interface IKernel {
  /** Of another user's kernel, which administrators see: after its owner and a slash. */
  id: string;
  /** Whose it is, on a controller of all users; null on a user's own. */
  user: string | null;
  /** Its class; higher ones go first. */
  priority: number;
  name: string | null;
  path: string | null;
  language: string | null;
  server: string | null;
  residency: Residency;
  /** In plain words. */
  text: string;
  /** In an answer to `park` and `resume` alone: what was asked for was so already, or the kernel has nothing that could be moved. */
  nothing_moved?: {
    /** `nothing-to-move`; null: it was so already. */
    code: null | Refusal;
    /** In plain words. */
    text: string;
  };
  reason: string | null;
  residency_age_s: number;
  resident_bytes: number;
  parked_bytes: number;
  /** How deep it is parked; context: the GPU does not know it any more. */
  depth: 'none' | 'memory' | 'context';
  /** Why its CUDA context stays on the GPU although the setting `depth` is context. */
  depth_refusal: string | null;
  footprint_bytes: number;
  /** What stays on the GPU when the rest is parked. */
  unmovable: {
    reason: UnmovableReason;
    bytes: number;
    text: string;
  }[];
  /** Host memory that holds its parked contents. */
  copy_bytes: number;
  /** Host memory that it retains from its last park for the next, with a copy of what has not changed. */
  retained_bytes: number;
  /** Host memory that the controller touched in advance and lent it for its first park. There is no copy in it. */
  set_aside_bytes: number;
  /** What of its parked or retained memory is once in host memory for several kernels of its user (`share_dir`). Not a part of `copy_bytes`. */
  shared_bytes: number;
  /** What of its parked memory is on the local disk, not in host memory. A part of `parked_bytes`. */
  disk_bytes: number;
  /** How busy it keeps the GPU that it uses most, by NVML's samples of its processes; null where NVML does not tell. */
  busy_percent: number | null;
  /** Host memory of its processes, with what holds parked memory; null where it cannot be seen. */
  host_bytes: number | null;
  /** Host memory that parking it takes beside what it has for that already; null: it is not on the GPU. */
  park_takes_bytes: number | null;
  idle_s: number | null;
  cell_open: boolean;
  eligible: boolean;
  eligible_in_s: number | null;
  held_for_s: number | null;
  /** The same as this machine's time of day with its zone, and with the date where it is a day away or more: what every view shows. */
  held_until: string | null;
  place: number | null;
  waiting_s: number | null;
  /** Why it waits, in plain words, with the name of a notebook of the same user that is in the way; null when it does not. */
  wait_reason: string | null;
  /** For how much longer at the most if nothing changes; null where that cannot be said. */
  estimate_s: number | null;
  /** Why its server is to shut it down for a kernel that waits; null when it is not. */
  end_asked: string | null;
  /** Why its server, or the keeper that has it, is to hibernate it now; null when it is not. */
  hibernate_asked: string | null;
  /** What its image takes on disk; null: it is in none, or that is not whole yet. */
  image_bytes: number | null;
  gpus: ({
    uuid: string;
    /** null: NVML does not say. */
    index: number | null;
    resident_bytes: number;
    parked_bytes: number;
    unmovable_bytes: number;
  })[];
  /** The GPU (UUID) that it had left before its last resume, if that brought it to another one. */
  moved_from: string | null;
  processes: ({
    /** What `end` knows the process by. */
    number: number;
    pid: number;
    /** Why it can make no progress any more, so that its owner may have it ended. */
    stuck: null | {
      reason: StuckReason;
      text: string;
    };
    residency: Residency;
    command: string;
    parkable: boolean;
    /** Pieces of 2 MiB that were wrong after a resume's first copy, and right after another. */
    mended_chunks: number;
  })[];
  simulated: boolean;
  /** Whether a shim is connected. */
  tracked: boolean;
  /** When all this was so, in seconds of this machine's monotonic clock: of two answers or events about a kernel the one with the larger figure is newer. */
  as_of_s: number;
  last_park: null | {
    bytes: number;
    duration_s: number;
    /** How long ago it ended; null: before this controller knew the process. */
    ago_s: number | null;
  };
  last_resume: null | {
    bytes: number;
    duration_s: number;
    /** How long ago it ended; null: before this controller knew the process. */
    ago_s: number | null;
  };
  parks: number;
  resumes: number;
  /** Why the last park was refused; null once one succeeded. */
  refusal: string | null;
  /** CUDA calls of all its processes and classes so far; the difference of two looks is a rate. */
  calls: number;
  /** The park or resume under way; null: none. */
  move: null | {
    kind: 'park' | 'resume';
    bytes: number;
    age_s: number;
  };
  /** How long bringing it back takes once there is room, or would take if it were parked, by the speeds that were measured; null: it has nothing to bring back, or is being moved. */
  resume_estimate_s: number | null;
  /** Why its residency changed last; null: nothing to tell. */
  reason_code: null | Cause;
  reason_args: {
    /** Whose the kernel is that it made room for: the same user's, or another's. */
    for?: 'own' | 'other';
  };
  /** The same for programs. */
  refusal_code: null | Refusal;
  /** Figures of the refusal, in bytes. */
  refusal_args: {
    [name: string]: number;
  };
  /** Why it waits, for programs; null when it does not. */
  wait: null | {
    code: WaitReason;
    args: {
      /** What it waits for. */
      bytes: number;
      /** Whose limit is used up. */
      limit?: 'user' | 'group';
      /** The group's name. */
      group?: string;
      /** How many compute on the GPU. */
      kernels?: number;
      /** That GPU's number. */
      gpu?: number;
    };
    /** What has the memory that it waits for, the most important first. */
    blockers: ({
      /** The kernel's id if it is the same user's; null: another user's, or programs that are not managed. */
      kernel_id: string | null;
      own: boolean;
      why: BlockerReason;
      /** When its memory will be free if nothing changes; null where that cannot be said. */
      free_in_s: number | null;
      /** Of a kernel that is held: the same as this machine's time of day. */
      held_until: string | null;
    })[];
  };
  /** The same for programs. */
  depth_refusal_code: null | DepthRefusal;
}

export interface IGpu {
  uuid: string;
  index: number;
  name: string;
  /** A part of a GPU (MIG), listed like a GPU. */
  mig: boolean;
  /** null without NVML */
  total_bytes: number | null;
  used_bytes: number;
  free_bytes: number | null;
  managed_bytes: number;
  /** What NVML counts for managed processes beside that: their CUDA contexts. null where its pids cannot be told from ours; they are then in unmanaged_bytes. */
  context_bytes: number | null;
  unmanaged_bytes: number | null;
  /** Processes that are not managed, the largest first. null where NVML's pids cannot be told from ours. */
  unmanaged: ({
    /** null: another user's */
    pid: number | null;
    command: string | null;
    bytes: number | null;
  })[] | null;
  /** How long parking and resuming take here, as its own moves showed: a fixed part, and so many bytes a second. null: nothing was moved yet. */
  speed: null | {
    park_fixed_s: number;
    park_bytes_per_s: number;
    resume_fixed_s: number;
    resume_bytes_per_s: number;
    /** What a park takes beside that for each byte of host memory that its process did not have yet. */
    first_touch_s_per_byte: number;
  };
  utilization_percent: number | null;
  /** Utilisation in percent, one each 2 s of the last minute, the oldest first. */
  utilization_history: (number | null)[] | null;
}

export interface INode {
  /** What users call the machine. */
  name: string;
  controller: {
    pid: number;
    version: string;
    uptime_s: number;
    socket: string;
    /** Whether it serves all users of the machine. */
    system: boolean;
  };
  simulated: boolean;
  /** Whether the GPUs' figures are measured by NVML. */
  nvml: boolean;
  driver_version: string | null;
  history: {
    /** Whether a ledger is to be written. */
    kept: boolean;
    /** Why nothing is written to it just now. */
    problem: string | null;
  };
  gpus: IGpu[];
  host: {
    total_bytes: number;
    available_bytes: number;
    reserve_bytes: number;
    parked_bytes: number;
    /** Host memory that holds parked contents. */
    copy_bytes: number;
    /** Retained by resident kernels from their last park for the next. */
    retained_bytes: number;
    /** Touched in advance and lent to kernels for their first park: a part of the lots that are given. */
    set_aside_bytes: number;
    /** Host memory that holds parked contents of several kernels of a user each, counted once (`share_dir`). Not a part of `copy_bytes`. */
    shared_bytes: number;
    /** Why a kernel could not share host memory; null where it can. */
    share_problem: string | null;
    /** Host memory that the controller touches in advance and hands out. */
    lots: {
      /** null: what parks that may come soon would take. */
      limit_bytes: number | null;
      ready_bytes: number;
      given_bytes: number;
    };
    cgroup_headroom_bytes: number | null;
  };
  /** The disk that parked memory goes to when host memory is short; null where there is none. */
  spill: null | {
    dir: string;
    /** Why nothing can go there; null where it can. */
    problem: string | null;
    /** Of all kernels together. */
    limit_bytes: number;
    /** What kernels have there, resident ones' copies included. */
    used_bytes: number;
    /** May be written in 24 hours. */
    daily_bytes: number;
    /** Was written in the last 24 hours. */
    written_bytes: number;
  };
  settings: unknown;
  /** Kernel ids, first come first; "another user" for those that the asker may not see, "a server that starts" for a request for room. */
  queue: string[];
  /** The requests for room in the queue, in its order; administrators see all, other users none. */
  starting: ({
    user: string | null;
    bytes: number;
    waiting_s: number;
    wait_reason: string | null;
    estimate_s: number | null;
  })[];
  /** All other users' kernels, in sums; null on a user's own controller. */
  others: null | {
    kernels: number;
    resident_bytes: number;
    parked_bytes: number;
    waiting: number;
  };
  /** When idle kernels are parked, and whether it is the user's own to change. */
  policy: {
    may_change: boolean;
    park_when: string;
    idle_timeout_s: number;
    contended_idle_timeout_s: number;
  };
  /** What this user's kernels gave back since midnight, local time; null: not known. */
  today: null | {
    /** Seconds times GPUs for which their memory was parked. */
    freed_gpu_s: number;
    parks: number;
  };
}

/** Something to tell a user, once. Nothing is kept: the state has it too. */
export interface INotice {
  kind: NoticeKind;
  level: 'info' | 'warning';
  /** Of a kernel: what comes after its name. */
  text: string;
  /** null: about the machine */
  kernel_id: string | null;
  /** What a sentence about it needs, as the kind has it. */
  args: {
    bytes?: number;
    /** Whose the other kernel is. */
    for?: 'own' | 'other';
    /** The GPU's number. */
    gpu?: number | null;
    from_gpu?: number | null;
    free_bytes?: number;
    total_bytes?: number;
    pid?: number;
    /** A Cause, Refusal or StuckReason. */
    reason?: string;
  };
}

export interface IActivity {
  /** So far, by class. */
  calls: {
    host: number;
    query: number;
    free: number;
    launch: number;
    copy: number;
    alloc: number;
    sync: number;
    module: number;
  };
  /** The most called first. */
  entry_points: {
    name: string;
    calls: number;
  }[];
  /** For how long entry points have been counted. */
  age_s: number;
}

/** Where a kernel's GPU state is; `queued` waits for room. */
export type Residency = 'none' | 'resident' | 'parking' | 'parked' | 'queued' | 'resuming' | 'lost' | 'hibernated';

/** Why bytes stay on the GPU. */
export type UnmovableReason = 'small' | 'managed' | 'mapped' | 'pool' | 'array' | 'shared' | 'unbacked' | 'integrated' | 'device';

/** What a CUDA call does. */
export type CallClass = 'host' | 'query' | 'free' | 'launch' | 'copy' | 'alloc' | 'sync' | 'module';

/** Why a process can make no progress any more. lost: Its GPU state is lost. resume-failed: Its memory could not be brought back, again and again. gpu-gone: The GPU that its memory belongs to is gone. gpu-too-small: Its memory cannot fit on the GPU any more. peer-gone: A CUDA call waits for a process of the kernel that is gone. parent-gone: The process that started it has ended, and it does nothing. stopped: It is stopped and holds memory. */
export type StuckReason = 'lost' | 'resume-failed' | 'gpu-gone' | 'gpu-too-small' | 'peer-gone' | 'parent-gone' | 'stopped';

/** Why a kernel waits for the GPU. turn: There is room, and the kernel is served next. full: The GPU is full until kernels on it have been idle for long enough. computing: The GPU is full, and kernels on it are at work. compute: As many kernels compute on the GPU as `max_computing_per_gpu` allows. held: A user keeps a kernel on the GPU whose memory it needs. host-memory: Kernels could be parked, and host memory for them is short. moving: Memory is being freed for it, or it is being brought back. limit: The limit of its user or group has no room for it. too-large: It needs more than can become free, whatever is parked. starting: The controller has just started and does not know every kernel yet. retry: It failed, or was offered room in vain, and is tried again in a moment. others-first: Others wait before it. outside: Programs that are not managed have the memory that it needs. ending: Its server shuts it down for another kernel. */
export type WaitReason = 'turn' | 'full' | 'computing' | 'compute' | 'held' | 'host-memory' | 'moving' | 'limit' | 'too-large' | 'starting' | 'retry' | 'others-first' | 'outside' | 'ending';

/** Why the memory that a waiter needs is not free. computing: The kernel is at work. held: Its user keeps it on the GPU. idle: It is idle, and may be parked when it has been for long enough. opted-out: It is never parked, or cannot be. moving: Its memory is on its way. outside: Programs that are not managed. */
export type BlockerReason = 'computing' | 'held' | 'idle' | 'opted-out' | 'moving' | 'outside';

/** Why a kernel's CUDA context stays on the GPU when it is parked. not-asked: Its process was started without AFFINODE_DEPTH=context, or its driver cannot do it. several-processes: Several of its processes use CUDA. several-gpus: It uses several GPUs. not-seen: NVML does not tell which processes use the GPU, or does not show this one yet. unmanaged: A process without a shim uses the GPU. failed: The shim or the driver refused. */
export type DepthRefusal = 'not-asked' | 'several-processes' | 'several-gpus' | 'not-seen' | 'unmanaged' | 'failed';

/** Why a kernel's residency changed last. other: None of the others. asked: The user, or a program for the user, asked for it. room: Park: another kernel waits for the memory. low-memory: Park: the GPU is under its low watermark. idle: Park: the kernel was idle and the policy parks all idle kernels. time-slice: Park: its time slice is over and others wait. limit: Park: its user or group has more on the GPUs than they may. Deny: it would have. full: End: the GPU is full of busy kernels and this is the newest. cell: Resume: a CUDA call waited. split: Resume: the kernel's other processes are on the GPU. undone: Resume: the kernel's other processes could not be parked. prefetch: Resume: the user is about to use the kernel, and there was room. failed: Its memory could not be brought back yet, and stays parked. too-large: Deny: the allocation cannot fit, whatever is parked. failed-again: Deny: the allocation failed again and again although there was room. */
export type Cause = 'other' | 'asked' | 'room' | 'low-memory' | 'idle' | 'time-slice' | 'limit' | 'full' | 'cell' | 'split' | 'undone' | 'prefetch' | 'failed' | 'too-large' | 'failed-again';

/** What a notice is about. made-room: A kernel's memory went to the host for another kernel, or because memory was low. moved: A kernel resumed on another GPU. refused: A kernel stays on the GPU although others wait. no-room: An allocation fails, and waiting would not help. resume-failed: A kernel's memory could not be brought back yet. stuck: A process makes no progress and may be ended. ended: A kernel's server shuts it down for a kernel that waits. memory-low: A GPU's memory is low. host-memory-low: The machine's memory is low. */
export type NoticeKind = 'made-room' | 'moved' | 'refused' | 'no-room' | 'resume-failed' | 'stuck' | 'ended' | 'memory-low' | 'host-memory-low';

/** Why a request is refused, for programs. bad-request: The request is not what the API describes. bad-setting: A setting is unknown or cannot have that value. not-found: There is nothing at this path. not-allowed: The path does not have this method. gone: The connection is closed. internal: The controller failed; its log has the error. bad-grant: The grant is not good. grant-required: A grant is needed and there is none. forbidden: Only administrators may do this. too-many-requests: The user asks more often than one user may. too-many-streams: The user has as many streams open as one user may. too-many-kernels: The controller knows as many kernels as it may. hold-quota: The user holds as much GPU memory as one user may. unknown-kernel: There is no such kernel. unknown-process: The kernel has no such process. not-stuck: The process is not stuck. out-of-reach: The process cannot be told for certain, or is not the controller's to end. no-ledger: There is no history that could be read. busy: The GPU is at work for the kernel. nothing-to-move: The kernel has no GPU memory that could be moved. not-parkable: Nothing of the kernel can be moved. older-kernel: It was started before an upgrade: it is not managed until it is restarted. older-controller: The controller was started before an upgrade: the kernel is not managed until that is restarted. no-host-memory: Host memory is short. no-gpu-room: The GPU is full. too-late: The kernel did not react in time. failed: The driver refused. refused: The kernel refused. lost: The kernel's GPU state is lost. kernel-ended: The kernel has ended. park-asked: A park was asked for since. cancelled: The kernel was interrupted. waits-for-gpu: A CUDA call of the kernel waits for the GPU. */
export type Refusal = 'bad-request' | 'bad-setting' | 'not-found' | 'not-allowed' | 'gone' | 'internal' | 'bad-grant' | 'grant-required' | 'forbidden' | 'too-many-requests' | 'too-many-streams' | 'too-many-kernels' | 'hold-quota' | 'unknown-kernel' | 'unknown-process' | 'not-stuck' | 'out-of-reach' | 'no-ledger' | 'busy' | 'nothing-to-move' | 'not-parkable' | 'older-kernel' | 'older-controller' | 'no-host-memory' | 'no-gpu-room' | 'too-late' | 'failed' | 'refused' | 'lost' | 'kernel-ended' | 'park-asked' | 'cancelled' | 'waits-for-gpu';
