import { JupyterFrontEnd } from '@jupyterlab/application';
import { IKernel } from '../status';
import { showTab } from '../notebook/browserTab';
import { mainPath } from '../words';

/** Bring a kernel's notebook or console to the front, or open it; a console's path is no file. */
export async function openKernel(app: JupyterFrontEnd, kernel: IKernel): Promise<void> {
  const { commands, serviceManager, shell } = app;
  for (const widget of shell.widgets('main')) {
    if (kernelIdOf(widget) === kernel.id) {
      shell.activateById(widget.id);
      return;
    }
  }
  const path = mainPath(kernel);
  if (path?.endsWith('.ipynb')) {
    if (app.name === 'Jupyter Notebook') {
      showTab(path);
    } else {
      await commands.execute('docmanager:open', { path });
    }
    return;
  }
  for (const session of serviceManager.sessions.running()) {
    if (session.kernel?.id === kernel.id && session.type === 'console') {
      await commands.execute('console:open', { path: session.path });
      return;
    }
  }
  if (path) {
    await commands.execute('docmanager:open', { path });
  }
}

/** The kernel of a notebook, a console or another widget that has a session. */
export function kernelIdOf(widget: unknown): string | undefined {
  const { sessionContext } = (widget ?? {}) as {
    sessionContext?: { session?: { kernel?: { id: string } | null } | null };
  };
  return sessionContext?.session?.kernel?.id;
}
