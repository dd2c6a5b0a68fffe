/** The list holds still while the pointer or the focus is in it: what is clicked is what was aimed at. */

import * as React from 'react';

/** What the list's element gets, and whether the rows are to hold still. */
export interface IStill {
  isHeld: boolean;
  props: {
    ref: React.RefObject<HTMLDivElement>;
    onPointerOver: (event: React.PointerEvent) => void;
    onPointerLeave: () => void;
    onFocus: (event: React.FocusEvent) => void;
    onBlur: (event: React.FocusEvent) => void;
  };
}

const ROW = '[data-kernel-id]';

/** A row, or the head of a section, whose buttons change sections at once. */
const PLACES = `${ROW}, .jp-affinode-head`;

/**
 * Tells while the pointer or the focus is on a row of the list. The row or head that they are on stays where it is on the
 * screen, whatever comes or goes above it.
 */
export function useStill(): IStill {
  const ref = React.useRef<HTMLDivElement>(null);
  const [hasPointer, setPointer] = React.useState(false);
  const [hasFocus, setFocus] = React.useState(false);
  const place = placeOfUser(ref.current);
  const before = place?.getBoundingClientRect().top ?? 0;
  React.useLayoutEffect(() => {
    const list = ref.current;
    const body = list?.parentElement;
    if (!list || !body) {
      return;
    }
    if (place === null) {
      list.style.marginTop = body.style.paddingBottom = '';
    } else if (place.isConnected) {
      keepAt(place, before, list, body);
    }
  });
  return {
    isHeld: hasPointer || hasFocus,
    props: {
      ref,
      onPointerOver: event => setPointer(isOnRow(event.target)),
      onPointerLeave: () => setPointer(false),
      onFocus: event => setFocus(isOnRow(event.target)),
      onBlur: event => setFocus(event.relatedTarget !== null && isOnRow(event.relatedTarget))
    }
  };
}

function isOnRow(target: EventTarget): boolean {
  return (target as Element).closest(ROW) !== null;
}

function placeOfUser(list: HTMLElement | null): HTMLElement | null {
  const active = document.activeElement?.closest<HTMLElement>(PLACES) ?? null;
  const hovered = [...(list?.querySelectorAll<HTMLElement>(PLACES) ?? [])].find(each =>
    each.matches(':hover')
  );
  return hovered ?? (list?.contains(active) ? active : null);
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
