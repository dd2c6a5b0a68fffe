/** What a waiting kernel waits for, which kernel is in the way, and for how much longer. */

import { IBlocker, IKernel, IWait, ownership } from '../status';
import { atMost, bytes, clockIn, IWords, title } from './figures';

/** What a sentence about a wait needs of the kernel; the estimate is an upper bound. */
type Waiting = Pick<IKernel, 'estimate_s' | 'wait'>;

/** A kernel's name in a sentence, by its id; null where it is not known. */
export type NameOf = (kernelId: string) => string | null;

/** The names of kernels that `find` knows: "train.ipynb", "a notebook of yours on another server". */
export function namesOf(find: (id: string) => IKernel | undefined, trans: IWords): NameOf {
  return id => {
    const kernel = find(id);
    return kernel ? nameInSentence(kernel, trans) : null;
  };
}

function nameInSentence(kernel: IKernel, trans: IWords): string {
  switch (ownership(kernel)) {
    case 'here':
      return title(kernel, trans);
    case 'elsewhere':
      return kernel.server
        ? trans.__('a notebook of yours on another server')
        : trans.__('a program of yours outside this server');
    case 'others':
      return kernel.user
        ? trans.__('a notebook of %1', kernel.user)
        : trans.__('another user’s notebook');
  }
}

/** What is in the way, as a subject: "train.ipynb", "another user’s notebook", "a program outside Jupyter". */
function blockerName(blocker: IBlocker, nameOf: NameOf, trans: IWords): string {
  const name = blocker.own && blocker.kernel_id !== null ? nameOf(blocker.kernel_id) : null;
  if (name !== null) {
    return name;
  }
  if (blocker.why === 'outside') {
    return trans.__('a program outside Jupyter');
  }
  return blocker.own ? trans.__('another notebook of yours') : trans.__('another user’s notebook');
}

/** Why a kernel keeps its memory: "train.ipynb is computing", "notes.ipynb is idle and may be freed in 12 s". */
export function blockerText(blocker: IBlocker, nameOf: NameOf, trans: IWords): string {
  const name = blockerName(blocker, nameOf, trans);
  const soon = blocker.free_in_s;
  switch (blocker.why) {
    case 'computing':
      return trans.__('%1 is computing', name);
    case 'held':
      return soon === null
        ? trans.__('%1 is kept on the GPU', name)
        : trans.__('%1 is kept on the GPU until %2', name, blocker.held_until ?? clockIn(soon));
    case 'idle':
      return soon === null || soon <= 0
        ? trans.__('%1 is idle', name)
        : trans.__('%1 is idle and is freed within %2', name, atMost(soon, trans));
    case 'opted-out':
      return trans.__('%1 is never freed', name);
    case 'moving':
      return trans.__('%1 is being moved', name);
    case 'outside':
      return trans.__('%1 uses the GPU', name);
    default:
      return trans.__('%1 has the GPU', name);
  }
}

/** Why a kernel waits, a whole sentence without a full stop; the first blocker by name where there is one. */
export function waitText(wait: IWait | null, nameOf: NameOf, trans: IWords): string {
  const blocker = wait?.blockers[0];
  switch (wait?.code) {
    case 'turn':
      return trans.__('It is next');
    case 'computing':
    case 'held':
    case 'full':
      return blocker
        ? sentence(blockerText(blocker, nameOf, trans))
        : wait.code === 'computing'
          ? trans.__('The GPU is full, and its kernels are computing')
          : trans.__('The GPU is full');
    case 'compute':
      return computeText(wait.args, trans);
    case 'host-memory':
      return trans.__('The GPU is full, and so is the machine’s RAM: nothing can be freed');
    case 'moving':
      return trans.__('Memory is being freed for it');
    case 'limit':
      return trans.__('Your other kernels use all GPU memory that you may have');
    case 'too-large':
      return typeof wait.args.bytes === 'number'
        ? trans.__('It needs %1, more than can become free', bytes(wait.args.bytes))
        : trans.__('It needs more than can become free');
    case 'starting':
      return trans.__('The GPU controller has just started');
    case 'retry':
      return trans.__('It is tried again in a moment');
    case 'others-first':
      return trans.__('Other kernels wait before it');
    case 'ending':
      return trans.__('It is being shut down for another kernel');
    case 'outside':
      return trans.__('Programs outside Jupyter use the GPU');
    default:
      return trans.__('The GPU is full');
  }
}

/** How many compute where: "Computing on GPU 0: 2 kernels, as many as allowed". */
function computeText(args: IWait['args'], trans: IWords): string {
  const kernels = args.kernels ?? null;
  if (kernels === null) {
    return trans.__('As many kernels compute on the GPU as allowed');
  }
  return typeof args.gpu === 'number'
    ? trans._n(
        'Computing on GPU %2: %1 kernel, as many as allowed',
        'Computing on GPU %2: %1 kernels, as many as allowed',
        kernels,
        args.gpu
      )
    : trans._n(
        'Computing on the GPU: %1 kernel, as many as allowed',
        'Computing on the GPU: %1 kernels, as many as allowed',
        kernels
      );
}

/** For how much longer: "at most 3 min", "cannot be said: train.ipynb is computing". */
export function estimateText(kernel: Waiting, nameOf: NameOf, trans: IWords): string {
  if (kernel.estimate_s !== null) {
    return trans.__('at most %1', atMost(kernel.estimate_s, trans));
  }
  const computing = kernel.wait?.blockers.find(each => each.why === 'computing');
  return computing
    ? trans.__('how long cannot be said: %1', blockerText(computing, nameOf, trans))
    : trans.__('how long cannot be said');
}

/** The bound as a sentence: "At most 3 min.", "How long cannot be said." */
export function boundText(kernel: Pick<Waiting, 'estimate_s'>, trans: IWords): string {
  return kernel.estimate_s === null
    ? trans.__('How long cannot be said.')
    : trans.__('At most %1.', atMost(kernel.estimate_s, trans));
}

/** The whole wait in two sentences, for a notice or a popover. */
export function waitSentence(kernel: Waiting, nameOf: NameOf, trans: IWords): string {
  return trans.__('%1. %2', waitText(kernel.wait, nameOf, trans), boundText(kernel, trans));
}

/** A sentence's first letter is a capital, except where it is a file's name. */
function sentence(text: string): string {
  const first = text.split(' ')[0];
  return first.includes('.') ? text : text.charAt(0).toUpperCase() + text.slice(1);
}
