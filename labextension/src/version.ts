/** The version of this page's half of the extension; a unit test holds it against package.json and the Python half. */
export const VERSION = '0.1.0';
