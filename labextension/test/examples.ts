import { nullTranslator } from '@jupyterlab/translation';
import { IGpu, IKernel, INode, IProcess, IStatus } from '../src/status';
import { VERSION } from '../src/version';
import { IWords } from '../src/words';

/** English, by JupyterLab's own class. */
export const trans: IWords = nullTranslator.load('jupyter_affinode');

/** A kernel of one's own that uses no GPU, with some changes. */
export function kernel(changes: Partial<IKernel> = {}): IKernel {
  return {
    id: 'a',
    own: true,
    name: 'Python 3 (ipykernel)',
    path: 'a.ipynb',
    paths: ['a.ipynb'],
    language: 'python',
    server: 'http://localhost:8888',
    residency: 'none',
    text: 'No GPU in use',
    reason: null,
    refusal: null,
    depth: 'none',
    depth_refusal: null,
    resident_bytes: 0,
    parked_bytes: 0,
    copy_bytes: 0,
    retained_bytes: 0,
    footprint_bytes: 0,
    unmovable: [],
    gpus: [],
    processes: [],
    idle_s: null,
    cell_open: false,
    eligible: false,
    eligible_in_s: null,
    held_for_s: null,
    place: null,
    waiting_s: null,
    wait_reason: null,
    estimate_s: null,
    simulated: false,
    tracked: true,
    as_of_s: 0,
    set_aside_bytes: 0,
    shared_bytes: 0,
    held_until: null,
    user: null,
    calls: 0,
    move: null,
    last_park: null,
    last_resume: null,
    resume_estimate_s: null,
    reason_code: null,
    reason_args: {},
    refusal_code: null,
    refusal_args: {},
    depth_refusal_code: null,
    wait: null,
    disk_bytes: 0,
    busy_percent: null,
    host_bytes: null,
    park_takes_bytes: null,
    priority: 0,
    residency_age_s: 0,
    end_asked: null,
    hibernate_asked: null,
    image_bytes: null,
    hibernation: null,
    moved_from: null,
    parks: 0,
    resumes: 0,
    ...changes
  };
}

/** A process that uses CUDA, with some changes. */
export function process(changes: Partial<IProcess> = {}): IProcess {
  return {
    number: 1,
    pid: 7,
    residency: 'resident',
    command: 'train.py',
    parkable: true,
    mended_chunks: 0,
    stuck: null,
    ...changes
  };
}

/** The controller of a machine, with some changes. */
export function controller(changes: Partial<INode['controller']> = {}): INode['controller'] {
  return {
    pid: 1,
    version: VERSION,
    uptime_s: 3600,
    socket: '/run/affinode.sock',
    system: false,
    ...changes
  };
}

/** An empty GPU of 80 GiB, with some changes. */
export function gpu(changes: Partial<IGpu> = {}): IGpu {
  return {
    uuid: 'GPU-1',
    index: 0,
    name: 'NVIDIA H100',
    total_bytes: 80 * 2 ** 30,
    used_bytes: 0,
    free_bytes: 80 * 2 ** 30,
    managed_bytes: 0,
    context_bytes: null,
    unmanaged_bytes: 0,
    unmanaged: [],
    utilization_percent: 0,
    utilization_history: [],
    mig: false,
    speed: null,
    ...changes
  };
}

/** A machine, with some changes. */
export function node(changes: Partial<INode> = {}): INode {
  return {
    simulated: false,
    nvml: true,
    gpus: [gpu()],
    host: {
      total_bytes: 512 * 2 ** 30,
      available_bytes: 400 * 2 ** 30,
      reserve_bytes: 0,
      parked_bytes: 0,
      copy_bytes: 0,
      retained_bytes: 0,
      set_aside_bytes: 0,
      shared_bytes: 0,
      share_problem: null,
      lots: { limit_bytes: null, ready_bytes: 0, given_bytes: 0 },
      cgroup_headroom_bytes: null
    },
    queue: [],
    policy: {
      may_change: false,
      park_when: 'needed',
      idle_timeout_s: 300,
      contended_idle_timeout_s: 15
    },
    today: null,
    others: null,
    controller: controller(),
    name: 'machine',
    driver_version: null,
    history: { kept: true, problem: null },
    spill: null,
    settings: {},
    starting: [],
    ...changes
  };
}

/** A status of these kernels. */
export function status(kernels: IKernel[], machine: INode | null = node()): IStatus {
  return {
    version: VERSION,
    available: true,
    message: null,
    code: null,
    may_act: true,
    kept: [],
    node: machine,
    kernels
  };
}
