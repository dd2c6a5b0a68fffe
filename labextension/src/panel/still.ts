/** The list holds still while the pointer or the focus is in it: what is clicked is what was aimed at. */

import * as React from 'react';

/** What the list's element gets, and whether it is to hold still. */
export interface IStill {
  isHeld: boolean;
  props: {
    ref: React.RefObject<HTMLDivElement>;
    onPointerEnter: () => void;
    onPointerLeave: () => void;
    onFocus: () => void;
    onBlur: (event: React.FocusEvent) => void;
  };
}

/**
 * Tells while the pointer or the focus is in the list. The row that they are on stays where it is on the screen, whatever
 * comes or goes above it.
 */
export function useStill(): IStill {
  const ref = React.useRef<HTMLDivElement>(null);
  const [hasPointer, setPointer] = React.useState(false);
  const [hasFocus, setFocus] = React.useState(false);
  const isHeld = hasPointer || hasFocus;
  const row = isHeld ? rowOfUser(ref.current) : null;
  const before = row?.getBoundingClientRect().top ?? 0;
  React.useLayoutEffect(() => {
    const list = ref.current;
    const body = list?.parentElement;
    if (!list || !body) {
      return;
    }
    if (!isHeld) {
      list.style.marginTop = body.style.paddingBottom = '';
    } else if (row?.isConnected) {
      keepAt(row, before, list, body);
    }
  });
  return {
    isHeld,
    props: {
      ref,
      onPointerEnter: () => setPointer(true),
      onPointerLeave: () => setPointer(false),
      onFocus: () => setFocus(true),
      onBlur: event => setFocus(ref.current?.contains(event.relatedTarget as Node | null) ?? false)
    }
  };
}

function rowOfUser(list: HTMLElement | null): HTMLElement | null {
  const hovered = list?.querySelector<HTMLElement>('[data-kernel-id]:hover');
  const active = document.activeElement?.closest<HTMLElement>('[data-kernel-id]');
  return hovered ?? (list?.contains(active ?? null) ? (active ?? null) : null);
}

/** Scroll a row back to where it was; where the page is too short for that, it is made longer. */
function keepAt(row: HTMLElement, top: number, list: HTMLElement, body: HTMLElement): void {
  const moved = () => Math.round(row.getBoundingClientRect().top - top);
  body.scrollTop += moved();
  const rest = moved();
  if (rest > 0) {
    const below = list.getBoundingClientRect().bottom - body.getBoundingClientRect().bottom;
    body.style.paddingBottom = `${rest - below}px`; // as much as it has to be scrolled further
    body.scrollTop += rest;
  } else if (rest < 0) {
    list.style.marginTop = `${parseFloat(getComputedStyle(list).marginTop) - rest}px`;
  }
}
