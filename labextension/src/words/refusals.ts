/** Why the GPU controller, or the server, does not do what was asked. */

import { DepthRefusal, Refusal } from '../controllerTypes';
import { ICodeArgs } from '../status';
import { bytes, IWords } from './figures';
import { sentence, Sentences } from './reasons';

const unknownAction = (trans: IWords): string =>
  trans.__('the server does not know this action; its version may differ');
const tooMany = (trans: IWords): string =>
  trans.__('the GPU controller knows as many kernels as it may');
const readOnly = (trans: IWords): string => trans.__('you may look but not change anything here');
const noKernel = (trans: IWords): string => trans.__('this server has no such kernel');
const noGrant = (trans: IWords): string =>
  trans.__(
    'this server’s grant has ended or is missing; stop the server in the Hub and start it again'
  );
const noAnswer = (trans: IWords): string => trans.__('the GPU controller does not answer');

/** What the server extension, or the page, refuses by itself. */
type OwnRefusal = 'not-here' | 'not-kept' | 'no-keeper' | 'no-controller' | 'unreachable';

const REFUSALS: Sentences<Refusal | OwnRefusal> = {
  busy: trans => trans.__('the GPU is at work for it'),
  'nothing-to-move': trans => trans.__('it has no GPU memory that could be moved'),
  'not-parkable': trans => trans.__('nothing of it can be moved'),
  'older-kernel': trans =>
    trans.__('it was started before an upgrade, and is not managed until it is restarted'),
  'older-controller': trans =>
    trans.__(
      'the GPU controller was started before an upgrade, and manages it only once restarted'
    ),
  'no-host-memory': (trans, args) =>
    typeof args?.bytes === 'number'
      ? trans.__('the machine’s RAM is short: %1 are needed', bytes(args.bytes))
      : trans.__('the machine’s RAM is short'),
  'no-gpu-room': trans => trans.__('the GPU is full'),
  'too-late': trans => trans.__('it did not react in time'),
  failed: trans => trans.__('the GPU driver refused'),
  lost: trans => trans.__('its GPU state is lost'),
  'kernel-ended': trans => trans.__('the kernel has ended'),
  'park-asked': trans => trans.__('freeing it was asked for since'),
  cancelled: trans => trans.__('the kernel was interrupted'),
  'waits-for-gpu': trans => trans.__('a cell of it waits for the GPU'),
  'hold-quota': trans => trans.__('you already keep as much GPU memory as one user may'),
  'too-many-requests': trans =>
    trans.__('too many requests in a short time; try again in a moment'),
  refused: trans => trans.__('the kernel refused'),
  'bad-request': unknownAction,
  'bad-setting': unknownAction,
  'not-found': unknownAction,
  'not-allowed': unknownAction,
  internal: trans => trans.__('the GPU controller failed; its log has the error'),
  'too-many-streams': tooMany,
  'too-many-kernels': tooMany,
  'no-ledger': trans => trans.__('there is no history'),
  forbidden: readOnly,
  'bad-grant': noGrant,
  'grant-required': noGrant,
  'unknown-kernel': noKernel,
  'not-here': noKernel,
  'unknown-process': trans => trans.__('the process has ended'),
  'not-stuck': trans => trans.__('the process is not stuck'),
  'out-of-reach': trans => trans.__('the process cannot be ended from here'),
  'not-kept': trans => trans.__('the kernel has ended, or a server has it again'),
  'no-keeper': trans => trans.__('what keeps kernels does not answer'),
  gone: noAnswer,
  'no-controller': noAnswer,
  unreachable: trans => trans.__('the Jupyter server does not answer')
};

/** Why a move or a request was refused, as a part of a sentence; null where nothing was refused. */
export function refusalText(
  code: string | null | undefined,
  args: ICodeArgs | null | undefined,
  trans: IWords
): string | null {
  return code
    ? (sentence(REFUSALS, code, trans, args) ?? trans.__('it is not possible at the moment'))
    : null;
}

/** Refusals whose reason is another program's, so that the server's own words say it. */
const IN_SERVERS_WORDS: ReadonlySet<string> = new Set(['not-hibernated', 'not-woken']);

/** What the server answered to an action, as a part of a sentence; of an `AffinodeError`. */
export function errorText(
  error: { slug: string; status: number; message?: string },
  trans: IWords
): string {
  if (error.message && IN_SERVERS_WORDS.has(error.slug)) {
    return error.message;
  }
  const isForbidden = error.slug === 'http' && error.status === 403; // of Jupyter Server itself
  return refusalText(isForbidden ? 'forbidden' : error.slug, null, trans) as string;
}

const DEPTH_REFUSALS: Sentences<DepthRefusal> = {
  'not-asked': trans =>
    trans.__('the kernel was not started for it, or the GPU driver cannot do it'),
  'several-processes': trans => trans.__('several of its processes use CUDA'),
  'several-gpus': trans => trans.__('it uses several GPUs'),
  'not-seen': trans => trans.__('it is not known which programs use the GPU'),
  unmanaged: trans => trans.__('a program that is not managed uses the GPU'),
  failed: trans => trans.__('the GPU driver refused')
};

/** Why a kernel's CUDA context stays on the GPU although the setting says otherwise; null where it need not be said. */
export function depthRefusalText(code: string | null | undefined, trans: IWords): string | null {
  return code
    ? (sentence(DEPTH_REFUSALS, code, trans) ?? trans.__('it cannot be moved safely here'))
    : null;
}

const NO_CONTROLLER: Sentences<string> = {
  starting: trans => trans.__('The GPU controller is starting.'),
  refused: trans => trans.__('The GPU controller does not let this server in.'),
  ended: trans => trans.__('The GPU controller has ended.'),
  disabled: trans =>
    trans.__(
      'The configuration of this server switches jupyter-affinode off (AffinodeExtension.enabled). Notebooks run as always.'
    ),
  remote: trans =>
    trans.__(
      'A kernel gateway starts them, and the GPUs there are not shown here. Where jupyter-affinode is installed on that machine, %gpu_status in a notebook says what its kernel has on the GPU.'
    )
};

/** Why there is no GPU controller: of the node event's or status' `code`. */
export function controllerText(code: string | null | undefined, trans: IWords): string {
  return sentence(NO_CONTROLLER, code, trans) ?? trans.__('The GPU controller does not answer.');
}
