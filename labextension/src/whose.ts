/** Whose a kernel is. Pure. */

import { IKernel } from './status';

/** Of this server; of the same user, but on another server or on none; of another user. */
export type Whose = 'here' | 'elsewhere' | 'others';

/** Only administrators are told of other users' kernels, by ids that begin with the owner. */
export function whose(kernel: IKernel): Whose {
  if (kernel.own) {
    return 'here';
  }
  return kernel.id.includes('/') ? 'others' : 'elsewhere';
}
