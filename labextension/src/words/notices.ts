/** Notices: what a user hears of once, built of a kind and its arguments. */

import { ICodeArgs } from '../status';
import { bytes, IWords } from './figures';
import { forWhom, stuckText } from './reasons';
import { refusalText } from './refusals';

/** The arguments that kinds of notices have; none of them must be there. */
export interface INoticeArgs extends ICodeArgs {
  gpu?: number | string | null;
  from_gpu?: number | string | null;
  free_bytes?: number | null;
  total_bytes?: number | null;
  pid?: number | null;
  reason?: string | null;
}

/** A notice as a sentence; `name` is the notebook's, null of the machine. */
export function noticeText(
  kind: string,
  args: INoticeArgs | null | undefined,
  name: string | null,
  trans: IWords
): string {
  const subject = name ?? trans.__('A notebook');
  switch (kind) {
    case 'made-room':
      return madeRoom(subject, args, trans);
    case 'moved':
      return known(args?.gpu)
        ? trans.__('%1 is on GPU %2 now. Its tensors are as they were.', subject, args?.gpu)
        : trans.__('%1 is on another GPU now. Its tensors are as they were.', subject);
    case 'refused': {
      const why = refusalText(args?.reason, args, trans);
      return why === null
        ? trans.__('%1 stays on the GPU.', subject)
        : trans.__('%1 stays on the GPU: %2.', subject, why);
    }
    case 'no-room':
      return known(args?.bytes)
        ? trans.__('%1 runs out of GPU memory: %2 cannot become free.', subject, size(args?.bytes))
        : trans.__('%1 runs out of GPU memory.', subject);
    case 'resume-failed':
      return trans.__(
        '%1 could not get its GPU memory back yet. It is safe and tried again.',
        subject
      );
    case 'stuck':
      return known(args?.pid)
        ? trans.__(
            '%1 has a process that is stuck (pid %2): %3.',
            subject,
            args?.pid,
            stuckText(args?.reason ?? '', trans)
          )
        : trans.__('%1 has a process that is stuck.', subject);
    case 'ended':
      return trans.__('%1 was shut down for a kernel that waits.', subject);
    case 'memory-low':
      return known(args?.free_bytes) && known(args?.total_bytes)
        ? trans.__(
            'GPU memory is low: %1 of %2 are free.',
            size(args?.free_bytes),
            size(args?.total_bytes)
          )
        : trans.__('GPU memory is low.');
    case 'host-memory-low':
      return known(args?.free_bytes)
        ? trans.__(
            'The machine’s RAM is low: %1 are left. Idle notebooks may stay on the GPU.',
            size(args?.free_bytes)
          )
        : trans.__('The machine’s RAM is low. Idle notebooks may stay on the GPU.');
    default:
      return name === null
        ? trans.__('The GPU panel has news.')
        : trans.__('The GPU panel has news of %1.', name);
  }
}

/** The same notice about several notebooks: "9 notebooks made room for another user’s notebook; 144 MiB are safe in RAM." */
export function noticesText(
  kind: string,
  args: INoticeArgs | null | undefined,
  count: number,
  trans: IWords
): string {
  switch (kind) {
    case 'made-room':
      return manyMadeRoom(args, count, trans);
    case 'moved':
      return trans._n(
        '%1 notebook is on another GPU now. Its tensors are as they were.',
        '%1 notebooks are on another GPU now. Their tensors are as they were.',
        count
      );
    case 'refused':
      return trans._n(
        '%1 notebook stays on the GPU: %2.',
        '%1 notebooks stay on the GPU: %2.',
        count,
        refusalText(args?.reason, null, trans) ?? trans.__('it is not possible at the moment')
      );
    case 'no-room':
      return trans._n(
        '%1 notebook runs out of GPU memory.',
        '%1 notebooks run out of GPU memory.',
        count
      );
    case 'resume-failed':
      return trans._n(
        '%1 notebook could not get its GPU memory back yet. It is safe and tried again.',
        '%1 notebooks could not get their GPU memory back yet. It is safe and tried again.',
        count
      );
    case 'stuck':
      return trans._n(
        '%1 notebook has a process that is stuck.',
        '%1 notebooks have processes that are stuck.',
        count
      );
    case 'ended':
      return trans._n(
        '%1 notebook was shut down for a kernel that waits.',
        '%1 notebooks were shut down for kernels that wait.',
        count
      );
    case 'lost':
      return trans._n(
        '%1 notebook: GPU state lost.',
        '%1 notebooks: GPU state lost. Restart their kernels to use the GPU again.',
        count
      );
    case 'back':
      return trans._n('%1 notebook has the GPU.', '%1 notebooks have the GPU.', count);
    case 'wait':
      return trans._n('%1 notebook waits for the GPU.', '%1 notebooks wait for the GPU.', count);
    default:
      return trans._n(
        'The GPU panel has news of %1 notebook.',
        'The GPU panel has news of %1 notebooks.',
        count
      );
  }
}

function manyMadeRoom(args: INoticeArgs | null | undefined, count: number, trans: IWords): string {
  const safe = known(args?.bytes)
    ? trans.__('%1 are safe in RAM', size(args?.bytes))
    : trans.__('their memory is safe in RAM');
  switch (args?.reason) {
    case 'low-memory':
      return trans._n(
        '%1 notebook was freed since GPU memory was low; %2.',
        '%1 notebooks were freed since GPU memory was low; %2.',
        count,
        safe
      );
    case 'limit':
      return trans._n(
        '%1 notebook was freed by the limit of your GPU memory; %2.',
        '%1 notebooks were freed by the limit of your GPU memory; %2.',
        count,
        safe
      );
    case 'time-slice':
      return trans._n(
        '%1 notebook takes turns with others; %2.',
        '%1 notebooks take turns with others; %2.',
        count,
        safe
      );
    default:
      return trans._n(
        '%1 notebook made room for %2; %3.',
        '%1 notebooks made room for %2; %3.',
        count,
        forWhom(args, trans),
        safe
      );
  }
}

function madeRoom(subject: string, args: INoticeArgs | null | undefined, trans: IWords): string {
  const what = known(args?.bytes)
    ? trans.__('its %1 are safe in RAM', size(args?.bytes))
    : trans.__('its memory is safe in RAM');
  switch (args?.reason) {
    case 'low-memory':
      return trans.__('%1 was freed since GPU memory was low; %2.', subject, what);
    case 'limit':
      return trans.__('%1 was freed by the limit of your GPU memory; %2.', subject, what);
    case 'time-slice':
      return trans.__('%1 takes turns with %2; %3.', subject, forWhom(args, trans), what);
    default:
      return trans.__('%1 made room for %2; %3.', subject, forWhom(args, trans), what);
  }
}

function known(value: unknown): boolean {
  return value !== null && value !== undefined;
}

function size(value: unknown): string {
  return bytes(Number(value));
}
