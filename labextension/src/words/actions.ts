/** What users can do, each under one name everywhere. */

import { IWords, span } from './figures';

/** Actions of kernels that have words. */
export type NamedAction =
  | 'park'
  | 'resume'
  | 'hold'
  | 'release'
  | 'hibernate'
  | 'wake'
  | 'stay'
  | 'cancel-wait'
  | 'restart'
  | 'end'
  | 'open';

/** A button's label: "Free", "Get back", "Keep", "Stop keeping", "Hibernate", "Wake", "Stop", "Stop waiting". */
export function actionLabel(action: NamedAction, trans: IWords): string {
  switch (action) {
    case 'park':
      return trans.__('Free');
    case 'resume':
      return trans.__('Get back');
    case 'hold':
      return trans.__('Keep');
    case 'release':
      return trans.__('Stop keeping');
    case 'hibernate':
      return trans.__('Hibernate');
    case 'wake':
      return trans.__('Wake');
    case 'stay':
      return trans.__('Stop');
    case 'cancel-wait':
      return trans.__('Stop waiting');
    case 'restart':
      return trans.__('Restart');
    case 'end':
      return trans.__('End process');
    case 'open':
      return trans.__('Open');
  }
}

/** What was asked for and is not answered yet: "Free: asked for". */
export function askedText(action: NamedAction, trans: IWords): string {
  return trans.__('%1: asked for', actionLabel(action, trans));
}

/** An action that names its notebook, for buttons elsewhere: "Free notes.ipynb", "Stop keeping train.ipynb". */
export function actionOn(action: NamedAction, name: string, trans: IWords): string {
  switch (action) {
    case 'park':
      return trans.__('Free %1', name);
    case 'resume':
      return trans.__('Get %1 back', name);
    case 'hold':
      return trans.__('Keep %1', name);
    case 'release':
      return trans.__('Stop keeping %1', name);
    case 'hibernate':
      return trans.__('Hibernate %1', name);
    case 'wake':
      return trans.__('Wake %1', name);
    case 'stay':
      return trans.__('Leave %1 where it was', name);
    case 'cancel-wait':
      return trans.__('Stop waiting: %1', name);
    case 'restart':
      return trans.__('Restart %1', name);
    case 'end':
      return trans.__('End a process of %1', name);
    case 'open':
      return trans.__('Open %1', name);
  }
}

/** What an action does, for tooltips; `holdS` is for how long "Keep" keeps. */
export function actionCaption(action: NamedAction, holdS: number, trans: IWords): string {
  switch (action) {
    case 'park':
      return trans.__('Move the GPU memory to RAM. The next cell that uses CUDA gets it back.');
    case 'resume':
      return trans.__('Bring the GPU memory back now, without waiting for the next cell.');
    case 'hold':
      return trans.__('Keep the memory on the GPU for %1, even while idle.', span(holdS, trans));
    case 'release':
      return trans.__('The memory may be moved to RAM again while the kernel is idle.');
    case 'hibernate':
      return trans.__(
        'Write the kernel to disk, variables and GPU memory, and free all it takes. Using its notebook wakes it.'
      );
    case 'wake':
      return trans.__('Start the kernel again where it was, without waiting for the next cell.');
    case 'stay':
      return trans.__('Leave the kernel where it was.');
    case 'cancel-wait':
      return trans.__('Interrupt the kernel: its cell ends with KeyboardInterrupt.');
    case 'restart':
      return trans.__('Start the kernel again. All its variables are lost.');
    case 'end':
      return trans.__('End this process. What it has in GPU memory is lost.');
    case 'open':
      return trans.__('Bring the notebook to the front.');
  }
}
