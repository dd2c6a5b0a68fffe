// What a page's parts look like, measured: contrast of what is drawn, and texts that are cut off or lie on each other.
window.affinodeLooks = (() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const known = new Map();

  /** Red, green, blue (0 to 255) and alpha (0 to 1) of any CSS colour. */
  function rgba(color) {
    if (!known.has(color)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = color;
      canvas.fillRect(0, 0, 1, 1);
      const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
      known.set(color, [red, green, blue, alpha / 255]);
    }
    return known.get(color);
  }

  function over(front, back) {
    return [0, 1, 2].map(each => front[each] * front[3] + back[each] * (1 - front[3])).concat(1);
  }

  function luminance(color) {
    const [red, green, blue] = color.slice(0, 3).map(value => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  }

  function contrast(one, other) {
    const [a, b] = [luminance(one), luminance(other)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }

  function ancestors(element) {
    const found = [];
    for (let each = element; each; each = each.parentElement) {
      found.push(each);
    }
    return found;
  }

  /** The colour behind what an element draws. */
  function background(element) {
    return ancestors(element)
      .reverse()
      .map(each => rgba(getComputedStyle(each).backgroundColor))
      .reduce((back, front) => over(front, back), [255, 255, 255, 1]);
  }

  function opacity(element) {
    return ancestors(element).reduce((all, each) => all * Number(getComputedStyle(each).opacity), 1);
  }

  function isSeen(element) {
    return element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) &&
      element.closest('.jp-mod-unseen') === null && !isFaded(element);
  }

  function isFaded(element) {
    return opacity(element) === 0;
  }

  const hex = color => '#' + color.slice(0, 3).map(each => Math.round(each).toString(16).padStart(2, '0')).join('');

  function nameOf(element) {
    const named = ancestors(element).find(each => /jp-affinode/.test(each.getAttribute('class') ?? ''));
    const classes = (named?.getAttribute('class') ?? element.tagName).split(' ');
    return classes.filter(each => /jp-affinode|jp-mod-(?!minimal|styled|small)/.test(each)).join('.');
  }

  function pair(kind, element, front, back) {
    const [red, green, blue, alpha] = rgba(front);
    const drawn = over([red, green, blue, alpha * opacity(element)], back);
    const isDisabled = element.closest('[aria-disabled="true"]') !== null;
    return {
      kind: isDisabled ? 'disabled' : kind,
      what: nameOf(element),
      text: hex(drawn),
      background: hex(back),
      ratio: contrast(drawn, back)
    };
  }

  function textNodes(root) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
      if (walker.currentNode.data.trim() !== '' && isSeen(walker.currentNode.parentElement)) {
        found.push(walker.currentNode);
      }
    }
    return found;
  }

  /** Each pair of colours below some elements, as text or as a part of a picture that says something. */
  function pairs(selector) {
    const found = [];
    for (const root of document.querySelectorAll(selector)) {
      for (const node of textNodes(root)) {
        const element = node.parentElement;
        found.push(pair('text', element, getComputedStyle(element).color, background(element)));
      }
      for (const input of root.querySelectorAll('input')) {
        const back = background(input);
        found.push(pair('text', input, getComputedStyle(input).color, back));
        found.push(pair('text', input, getComputedStyle(input, '::placeholder').color, back));
        found.push(pair('graphic', input, getComputedStyle(input).borderTopColor, background(input.parentElement)));
      }
      for (const shape of root.querySelectorAll('svg :is(path, rect, circle, polygon, polyline, line)')) {
        const style = getComputedStyle(shape);
        if (!isSeen(shape.closest('svg').parentElement) || /sparkBase|Area|-grid/.test(shape.getAttribute('class') ?? '')) {
          continue; // the line says what the area below it repeats
        }
        // An edge in the background's colour sets what is filled apart from what lies below.
        const drawn = [style.fill, style.stroke]
          .filter(color => color !== 'none' && rgba(color)[3] > 0)
          .map(color => pair('graphic', shape.closest('svg').parentElement, color, background(shape.closest('svg'))));
        found.push(...drawn.sort((one, other) => other.ratio - one.ratio).slice(0, 1));
      }
      for (const drawn of root.querySelectorAll(
        '.jp-affinode-swatch, .jp-affinode-segment:not(.jp-mod-free), .jp-affinode-switch, .jp-affinode-switch > span, .jp-affinode-progress > div'
      )) {
        const style = getComputedStyle(drawn);
        if (!isSeen(drawn)) {
          continue;
        }
        const color = drawn.matches('[aria-checked="false"]') ? style.borderTopColor : style.backgroundColor;
        if (rgba(color)[3] > 0) {
          found.push(pair('graphic', drawn, color, background(drawn.parentElement)));
        }
      }
    }
    return found;
  }

  /** What can be seen of a text, line by line: outside of what clips it there is nothing. */
  function boxes(node) {
    const range = document.createRange();
    range.selectNodeContents(node);
    let rectangles = [...range.getClientRects()].map(({ left, top, right, bottom }) => ({ left, top, right, bottom }));
    for (const each of ancestors(node.parentElement)) {
      const { overflowX, overflowY } = getComputedStyle(each);
      if (overflowX !== 'visible' || overflowY !== 'visible') {
        const clip = each.getBoundingClientRect();
        rectangles = rectangles.map(one => ({
          left: Math.max(one.left, clip.left),
          top: Math.max(one.top, clip.top),
          right: Math.min(one.right, clip.right),
          bottom: Math.min(one.bottom, clip.bottom)
        }));
      }
    }
    return rectangles.filter(one => one.right - one.left > 1 && one.bottom - one.top > 1);
  }

  /** Texts that are cut off without a way to read them, that leave the page, or that lie on each other. */
  function troubles(selector) {
    const found = [];
    const drawn = [];
    for (const root of document.querySelectorAll(selector)) {
      for (const node of textNodes(root)) {
        const element = node.parentElement;
        const range = document.createRange();
        range.selectNodeContents(node);
        const whole = range.getBoundingClientRect();
        for (const each of ancestors(element)) {
          const style = getComputedStyle(each);
          if (!root.contains(each) || style.overflowX === 'auto' || style.overflowX === 'scroll') {
            break; // can be scrolled to
          }
          const clip = each.getBoundingClientRect();
          const isCut = style.overflowX !== 'visible' && (whole.right > clip.right + 1 || whole.left < clip.left - 1);
          const isCutBelow = style.overflowY === 'hidden' && whole.bottom > clip.bottom + 4;
          if ((isCut && element.closest('[title]') === null) || isCutBelow) {
            found.push(`cut off: "${node.data.trim()}" in ${nameOf(each)}`);
            break;
          }
        }
        for (const box of boxes(node)) {
          if (box.left < -1 || box.right > innerWidth + 1) {
            found.push(`beside the page: "${node.data.trim()}" in ${nameOf(element)}`);
          }
          drawn.push({ node, box });
        }
      }
    }
    drawn.forEach((one, index) => {
      for (const other of drawn.slice(index + 1)) {
        const width = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
        const height = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
        if (one.node !== other.node && width > 1 && height > 3) {
          found.push(`on each other: "${one.node.data.trim()}" and "${other.node.data.trim()}"`);
        }
      }
    });
    return found;
  }

  return { pairs, troubles };
})();
