import { JupyterFrontEnd } from '@jupyterlab/application';
import { Contents } from '@jupyterlab/services';
import { showTab } from '../notebook/browserTab';

/**
 * Bring a kernel's notebook or console to the front, or open it. One whose file is gone, or that never had one, gets a
 * console.
 */
export async function openKernel(
  app: JupyterFrontEnd,
  id: string,
  path: string | null
): Promise<void> {
  const { commands, serviceManager, shell } = app;
  for (const widget of shell.widgets('main')) {
    if (kernelIdOf(widget) === id) {
      shell.activateById(widget.id);
      return;
    }
  }
  for (const session of serviceManager.sessions.running()) {
    if (session.kernel?.id === id && session.type === 'console' && session.path === path) {
      await commands.execute('console:open', { path });
      return;
    }
  }
  if (path === null || !(await isFile(serviceManager.contents, path))) {
    await commands.execute('console:create', { kernelPreference: { id } });
  } else if (path.endsWith('.ipynb') && app.name === 'Jupyter Notebook') {
    showTab(path);
  } else {
    await commands.execute('docmanager:open', { path, kernel: { id } });
  }
}

async function isFile(contents: Contents.IManager, path: string): Promise<boolean> {
  try {
    await contents.get(path, { content: false });
    return true;
  } catch (error) {
    if ((error as { response?: Response }).response?.status === 404) {
      return false;
    }
    throw error;
  }
}

/** The kernel of a notebook, a console or another widget that has a session. */
export function kernelIdOf(widget: unknown): string | undefined {
  const { sessionContext } = (widget ?? {}) as {
    sessionContext?: { session?: { kernel?: { id: string } | null } | null };
  };
  return sessionContext?.session?.kernel?.id;
}
