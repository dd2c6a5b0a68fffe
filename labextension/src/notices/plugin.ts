import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { commandOf } from '../shell/commandOf';
import { kernelIdOf } from '../shell/openKernel';
import { CommandIDs, IAffinode } from '../tokens';
import { Announcements } from './announcements';
import { NoticeBoard } from './board';
import { IScreen, IShownNotice } from './screen';

/** JupyterLab's notifications. */
class Screen implements IScreen {
  constructor(private readonly _commands: CommandRegistry) {}

  show(shown: IShownNotice): string {
    return Notification.emit(shown.message, shown.type, this._options(shown));
  }

  update(id: string, shown: IShownNotice): void {
    const { message, type } = shown;
    Notification.update({ id, message, type, ...this._options(shown) });
  }

  dismiss(id: string): void {
    Notification.dismiss(id);
  }

  private _options(shown: IShownNotice): Notification.IOptions<null> {
    return {
      autoClose: shown.autoClose,
      actions: shown.actions.map(({ action, kernelId, label, process }) => ({
        label,
        callback: () =>
          void (action === 'panel'
            ? this._commands.execute(CommandIDs.openPanel)
            : this._commands.execute(commandOf[action], { kernelId, process }))
      }))
    };
  }
}

/** Shows the notices, unless the settings say no. */
export const noticesPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-affinode:notices',
  description:
    'Notifications about the GPU: that a notebook waits, made room for another user or lost its GPU state.',
  autoStart: true,
  requires: [IAffinode],
  optional: [ITranslator],
  activate: (app: JupyterFrontEnd, affinode: IAffinode, translator: ITranslator | null): void => {
    const isInView = (kernelId: string): boolean => {
      const widgets = document.hidden ? [] : [...app.shell.widgets('main')];
      return widgets.some(widget => widget.isVisible && kernelIdOf(widget) === kernelId);
    };
    const board = new NoticeBoard(
      {
        kernels: () => (affinode.status?.available ? affinode.status.kernels : null),
        isWanted: () => affinode.settings.showNotifications,
        isInView
      },
      new Screen(app.commands),
      (translator ?? nullTranslator).load('jupyter_affinode')
    );
    affinode.changed.connect(() => board.look());
    affinode.noticed.connect((_, event) => board.tell(event));
  }
};

/** Tells screen readers how the user's kernels fare, whether or not the panel is open. */
export const announcementsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-affinode:announcements',
  description: 'Announces changes of the GPU state of one’s own notebooks to screen readers.',
  autoStart: true,
  requires: [IAffinode],
  optional: [ITranslator],
  activate: (_: JupyterFrontEnd, affinode: IAffinode, translator: ITranslator | null): void => {
    const region = document.createElement('div');
    region.className = 'jp-affinode-announcements';
    region.setAttribute('role', 'status');
    document.body.appendChild(region);
    const announcements = new Announcements(
      () => affinode.status?.kernels ?? null,
      text => {
        region.textContent = text;
      },
      (translator ?? nullTranslator).load('jupyter_affinode')
    );
    affinode.changed.connect(() => announcements.look());
  }
};
