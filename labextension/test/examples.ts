import { IKernel } from '../src/status';
import { IWords } from '../src/words';

/** English, as JupyterLab's null translator gives it. */
export const trans: IWords = {
  __: (text, ...values) => text.replace(/%(\d)/g, (_, index) => String(values[Number(index) - 1])),
  _n: (one, many, count) => (count === 1 ? one : many).replace('%1', String(count))
};

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
    kept_bytes: 0,
    footprint_bytes: 0,
    fixed: [],
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
    ...changes
  };
}
