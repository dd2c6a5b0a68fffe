/** Numbers that stay with their kernels, the smallest free one first, so that few kernels get the clearest colours. */
export class Hues {
  /** The kernel's number. */
  of(id: string): number {
    const known = this._hues.get(id);
    if (known !== undefined) {
      return known;
    }
    const taken = new Set(this._hues.values());
    let hue = 0;
    while (taken.has(hue)) {
      hue += 1;
    }
    this._hues.set(id, hue);
    return hue;
  }

  /** Free the numbers of all other kernels. */
  keep(ids: string[]): void {
    const alive = new Set(ids);
    for (const id of this._hues.keys()) {
      if (!alive.has(id)) {
        this._hues.delete(id);
      }
    }
  }

  private readonly _hues = new Map<string, number>();
}
