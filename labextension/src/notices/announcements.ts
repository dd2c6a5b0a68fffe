/** What screen readers are told of the user's own kernels. No JupyterLab here. */

import { IKernel, Residency } from '../status';
import { IWords, namesOf, stateText, title, waitText } from '../words';

/** What is over sooner is neither announced nor shown above the notebook. */
export const PATIENCE_MS = 1500;

/** Announces each change of state that lasts, once; several that come together in one go. */
export class Announcements {
  /** `kernels`: all that are known, null while there is no status. */
  constructor(
    private readonly _kernels: () => IKernel[] | null,
    private readonly _say: (text: string) => void,
    private readonly _trans: IWords
  ) {}

  /** The status changed. */
  look(): void {
    const kernels = this._own();
    if (kernels === null) {
      return; // nothing is known: what was said may still be so
    }
    this._said = new Map(kernels.map(({ id, residency }) => [id, this._said.get(id) ?? residency]));
    if (this._changed(kernels).length > 0) {
      this._timer ??= setTimeout(() => this._tell(), PATIENCE_MS);
    }
  }

  private _tell(): void {
    this._timer = undefined;
    const changed = this._changed(this._own() ?? []);
    if (changed.length > 0) {
      changed.forEach(kernel => this._said.set(kernel.id, kernel.residency));
      this._say(changed.map(kernel => this._sentence(kernel)).join(' '));
    }
  }

  /** Kernels that are in another state than was said; a move says nothing before its end. */
  private _changed(kernels: IKernel[]): IKernel[] {
    return kernels.filter(
      ({ id, residency }) =>
        residency !== 'parking' && residency !== 'resuming' && this._said.get(id) !== residency
    );
  }

  private _sentence(kernel: IKernel): string {
    const trans = this._trans;
    const said = trans.__('%1: %2.', title(kernel, trans), stateText(kernel, trans));
    if (kernel.residency !== 'queued') {
      return said;
    }
    const find = (id: string) => this._kernels()?.find(one => one.id === id);
    return trans.__('%1 %2.', said, waitText(kernel.wait, namesOf(find, trans), trans));
  }

  private _own(): IKernel[] | null {
    return this._kernels()?.filter(kernel => kernel.own) ?? null;
  }

  /** The state that was said of each kernel, or that it had at first. */
  private _said = new Map<string, Residency>();
  private _timer: ReturnType<typeof setTimeout> | undefined;
}
