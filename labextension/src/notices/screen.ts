/** Notices as they are shown. No JupyterLab here. */

import { NamedAction } from '../words';

/** A button of a notice; `panel` shows the panel, where a notice is about several kernels. */
export interface INoticeAction {
  action: NamedAction | 'panel';
  kernelId: string;
  label: string;
  /** Which process is to be ended. */
  process?: number;
}

/** What is shown. */
export interface IShownNotice {
  message: string;
  type: 'info' | 'success' | 'warning' | 'error' | 'in-progress';
  actions: INoticeAction[];
  autoClose: number | false;
}

/** Where notices are shown. */
export interface IScreen {
  /** Show one; its id. */
  show(notice: IShownNotice): string;
  /** Change one; one that the user has closed stays closed. */
  update(id: string, notice: IShownNotice): void;
  dismiss(id: string): void;
}
