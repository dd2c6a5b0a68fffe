/* Clicks a tile of the launcher, runs a first cell as soon as the page talks with the kernel, and returns in milliseconds
 * from the click: until JupyterLab had opened the notebook, and until the cell's output was drawn. */
async ([words, code, output]) => {
  const { shell, commands } = window.jupyterapp;
  const until = async look => {
    for (const end = performance.now() + 60000; ; ) {
      const found = look();
      if (found) {
        return found;
      }
      if (performance.now() > end) {
        throw new Error(`not in time: ${look}`);
      }
      await new Promise(resolve => requestAnimationFrame(resolve));
    }
  };
  await commands.execute('launcher:create');
  const cards = () => [...document.querySelectorAll('.jp-LauncherCard[data-category=Notebook]')];
  const tile = await until(() => cards().find(card => card.offsetParent && card.textContent.includes(words)));
  const before = new Set(shell.widgets('main'));
  const began = performance.now();
  tile.click();
  const panel = await until(() => [...shell.widgets('main')].find(widget => !before.has(widget) && widget.context));
  await panel.context.ready;
  const opened = performance.now() - began;
  await until(() => panel.sessionContext.session?.kernel && shell.currentWidget === panel);
  await panel.sessionContext.session.kernel.info; // a cell that is run before is lost
  panel.content.model.cells.get(0).sharedModel.setSource(code);
  void commands.execute('notebook:run-cell');
  const drawn = () => panel.content.node.querySelector('.jp-OutputArea-output')?.textContent ?? '';
  await until(() => drawn().includes(output));
  return { opened, shown: performance.now() - began };
};
