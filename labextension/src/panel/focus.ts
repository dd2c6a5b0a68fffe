import * as React from 'react';

/** Where the focus was: a control of a kernel's row, or of the panel. */
interface IPlace {
  kernel: string | null;
  control: string | null;
  /** The row's number among all, for when the kernel is gone. */
  index: number;
}

/** Rows that move to another section are made anew; this gives the focus to the same control of the same kernel again. */
export function useKeptFocus(root: React.RefObject<HTMLElement>): {
  onFocus: (event: React.FocusEvent) => void;
  onBlur: (event: React.FocusEvent) => void;
} {
  const place = React.useRef<IPlace | null>(null);
  const isRendering = React.useRef(false);
  isRendering.current = true;
  React.useLayoutEffect(() => {
    isRendering.current = false;
    const node = root.current;
    const active = document.activeElement;
    if (node && place.current && (active === null || active === document.body)) {
      find(node, place.current)?.focus();
    }
  });
  return {
    onFocus: event => {
      place.current = placeOf(event.target as HTMLElement, root.current);
    },
    onBlur: event => {
      if (!isRendering.current && document.hasFocus() && event.target.isConnected) {
        place.current = null; // left by the user
      }
    }
  };
}

function placeOf(target: HTMLElement, root: HTMLElement | null): IPlace {
  const row = target.closest<HTMLElement>('[data-kernel-id]');
  return {
    kernel: row?.dataset.kernelId ?? null,
    control: target.dataset.control ?? null,
    index: row && root ? rows(root).indexOf(row) : -1
  };
}

/** The same control; else another of the row; else the name in the row that took its place; else the panel. */
function find(root: HTMLElement, place: IPlace): HTMLElement | null {
  const all = rows(root);
  const same = all.find(row => row.dataset.kernelId === place.kernel);
  const row = same ?? all[Math.min(place.index, all.length - 1)];
  const scope = place.kernel === null ? root : row;
  const isThere = place.kernel === null || same !== undefined; // no button of another kernel
  const control = isThere
    ? scope?.querySelector<HTMLElement>(`[data-control="${CSS.escape(place.control ?? '')}"]`)
    : null;
  return (
    control ??
    row?.querySelector<HTMLElement>('[data-control="name"], [data-control="caret"]') ??
    root.querySelector<HTMLElement>('[data-control]')
  );
}

function rows(root: HTMLElement): HTMLElement[] {
  return [...root.querySelectorAll<HTMLElement>('[data-kernel-id]')];
}

/** Arrow keys go from row to row, by the same control. */
export function moveByArrow(event: React.KeyboardEvent, root: HTMLElement | null): void {
  if ((event.key !== 'ArrowDown' && event.key !== 'ArrowUp') || !root) {
    return;
  }
  const target = event.target as HTMLElement;
  const row = target.closest<HTMLElement>('[data-kernel-id]');
  const next = row && rows(root)[rows(root).indexOf(row) + (event.key === 'ArrowDown' ? 1 : -1)];
  if (next) {
    const control = target.dataset.control ?? 'name';
    (
      next.querySelector<HTMLElement>(`[data-control="${CSS.escape(control)}"]`) ??
      next.querySelector<HTMLElement>('[data-control]')
    )?.focus();
    event.preventDefault();
  }
}
