/** Why the GPU controller, or the server, does not do what was asked. */

import { bytes, IWords } from './figures';
import { ICodeArgs } from './reasons';

/** Why a move or a request was refused, as a part of a sentence; null where nothing was refused. */
export function refusalText(
  code: string | null | undefined,
  args: ICodeArgs | null | undefined,
  trans: IWords
): string | null {
  switch (code) {
    case null:
    case undefined:
    case '':
      return null;
    case 'busy':
      return trans.__('the GPU is at work for it');
    case 'nothing-to-move':
      return trans.__('it has no GPU memory that could be moved');
    case 'not-parkable':
      return trans.__('nothing of it can be moved');
    case 'no-host-memory':
      return typeof args?.bytes === 'number'
        ? trans.__('the machine’s RAM is short: %1 are needed', bytes(args.bytes))
        : trans.__('the machine’s RAM is short');
    case 'no-gpu-room':
      return trans.__('the GPU is full');
    case 'too-late':
      return trans.__('it did not react in time');
    case 'failed':
      return trans.__('the GPU driver refused');
    case 'lost':
      return trans.__('its GPU state is lost');
    case 'kernel-ended':
      return trans.__('the kernel has ended');
    case 'park-asked':
      return trans.__('freeing it was asked for since');
    case 'cancelled':
      return trans.__('the kernel was interrupted');
    case 'waits-for-gpu':
      return trans.__('a cell of it waits for the GPU');
    case 'hold-quota':
      return trans.__('you already keep as much GPU memory as one user may');
    case 'too-many-requests':
      return trans.__('too many requests in a short time; try again in a moment');
    case 'refused':
      return trans.__('the kernel refused');
    case 'bad-request':
    case 'bad-setting':
    case 'not-found':
    case 'not-allowed':
      return trans.__('the server does not know this action; its version may differ');
    case 'internal':
      return trans.__('the GPU controller failed; its log has the error');
    case 'too-many-streams':
    case 'too-many-kernels':
      return trans.__('the GPU controller knows as many kernels as it may');
    case 'no-ledger':
      return trans.__('there is no history');
    case 'forbidden':
    case 'bad-grant':
    case 'grant-required':
    case 'http-403':
      return trans.__('you may look but not change anything here');
    case 'unknown-kernel':
    case 'not-here':
      return trans.__('this server has no such kernel');
    case 'unknown-process':
      return trans.__('the process has ended');
    case 'not-stuck':
      return trans.__('the process is not stuck');
    case 'out-of-reach':
      return trans.__('the process cannot be ended from here');
    case 'gone':
    case 'no-controller':
      return trans.__('the GPU controller does not answer');
    case 'unreachable':
      return trans.__('the Jupyter server does not answer');
    default:
      return trans.__('it is not possible at the moment');
  }
}

/** What the server answered to an action, as a part of a sentence; of an `AffinodeError`, `slug` and `status`. */
export function errorText(error: { slug: string; status: number }, trans: IWords): string {
  const isForbidden = error.status === 403 || error.status === 401;
  return refusalText(isForbidden ? 'forbidden' : error.slug, null, trans) as string;
}

/** Why a kernel's CUDA context stays on the GPU although the setting says otherwise; null where it need not be said. */
export function depthRefusalText(code: string | null | undefined, trans: IWords): string | null {
  switch (code) {
    case null:
    case undefined:
    case '':
      return null;
    case 'not-asked':
      return trans.__('the kernel was not started for it, or the GPU driver cannot do it');
    case 'several-processes':
      return trans.__('several of its processes use CUDA');
    case 'several-gpus':
      return trans.__('it uses several GPUs');
    case 'not-seen':
      return trans.__('it is not known which programs use the GPU');
    case 'stranger':
      return trans.__('a program that is not managed uses the GPU');
    case 'failed':
      return trans.__('the GPU driver refused');
    default:
      return trans.__('it cannot be moved safely here');
  }
}

/** Why there is no GPU controller: of the node event's or status' `code`. */
export function controllerText(code: string | null | undefined, trans: IWords): string {
  switch (code) {
    case 'starting':
      return trans.__('The GPU controller is starting.');
    case 'refused':
      return trans.__('The GPU controller does not let this server in.');
    case 'ended':
      return trans.__('The GPU controller has ended.');
    default:
      return trans.__('The GPU controller does not answer.');
  }
}
