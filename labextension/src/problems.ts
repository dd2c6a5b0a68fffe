/** What is wrong when there is no status, or an old one. Pure. */

import { TranslationBundle } from '@jupyterlab/translation';
import { AffinodeError } from './api';
import { IStatus } from './status';
import { IProblem } from './tokens';
import { VERSION } from './version';
import { sameRelease } from './words';

/** Problems that pass: the last status is kept meanwhile. */
export const PASSING: ReadonlySet<IProblem['kind']> = new Set(['unreachable', 'controller']);

/** What is wrong with an answer; null when nothing is. */
export function problemOf(status: IStatus, trans: Pick<TranslationBundle, '__'>): IProblem | null {
  if (!status.available) {
    const message = trans.__('The GPU controller does not answer.');
    return { kind: 'controller', message, code: status.code };
  }
  if (!sameRelease(status.version, VERSION)) {
    const message = trans.__(
      'This page is of version %1, the server of version %2. Reload the page; if this stays, restart the server.',
      VERSION,
      status.version
    );
    return { kind: 'version', message };
  }
  return null;
}

/** What a failed request says. */
export function problemOfError(
  error: AffinodeError,
  trans: Pick<TranslationBundle, '__'>
): IProblem {
  if (error.status === 404) {
    const message = trans.__(
      'The server that runs your notebooks has no jupyter-affinode, or has it switched off.'
    );
    return { kind: 'missing', message };
  }
  if (error.status === 401 || error.status === 403) {
    return { kind: 'refused', message: trans.__('This server does not let you see its kernels.') };
  }
  if (error.status === 0) {
    return { kind: 'unreachable', message: trans.__('The Jupyter server does not answer.') };
  }
  return { kind: 'controller', message: error.message };
}
