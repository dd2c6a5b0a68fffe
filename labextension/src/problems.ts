/** What is wrong when there is no status, or an old one. Pure. */

import { AffinodeError } from './api';
import { IStatus } from './status';
import { IProblem } from './tokens';
import { VERSION } from './version';
import { controllerText, IWords, sameRelease } from './words';

/** Whether what is wrong passes, so that the last status is kept meanwhile. */
export function passes(problem: IProblem | null): boolean {
  return problem !== null && ['unreachable', 'controller', 'starting'].includes(problem.kind);
}

/** Codes of an absent controller that are no failure. */
const NO_FAILURES = ['starting', 'disabled', 'remote'] as const;

/** What no server answers, or a proxy or the Hub for one that does not run. */
const SERVER_AWAY: readonly number[] = [0, 424, 502, 503, 504];

/** What is wrong with an answer; null when nothing is. */
export function problemOf(status: IStatus, trans: IWords): IProblem | null {
  if (!status.available) {
    const kind = NO_FAILURES.find(code => code === status.code) ?? 'controller';
    return { kind, message: controllerText(status.code, trans) };
  }
  const controller = status.node?.controller?.version ?? VERSION;
  if (!sameRelease(status.version, VERSION)) {
    const message = trans.__(
      'This page is of version %1, the server of version %2. Reload the page; if this stays, restart the server.',
      VERSION,
      status.version
    );
    return { kind: 'version', message };
  }
  if (!sameRelease(controller, VERSION)) {
    const message = trans.__(
      'This page is of version %1, the GPU controller of version %2. Notebooks run on; restart the controller.',
      VERSION,
      controller
    );
    return { kind: 'version', message };
  }
  return null;
}

/**
 * What a failed request says. Where the server part was there already, its absence passes: while a named server is stopped,
 * the user's default server answers for it.
 */
export function problemOfError(error: AffinodeError, trans: IWords, wasThere = false): IProblem {
  if (SERVER_AWAY.includes(error.status) || (error.status === 404 && wasThere)) {
    return { kind: 'unreachable', message: trans.__('The Jupyter server does not answer.') };
  }
  if (error.status === 404) {
    const message = trans.__(
      'The server that runs your notebooks has no jupyter-affinode, or has it switched off.'
    );
    return { kind: 'missing', message };
  }
  if (error.status === 401 || error.status === 403) {
    return { kind: 'refused', message: trans.__('This server does not let you see its kernels.') };
  }
  return { kind: 'controller', message: error.message };
}
