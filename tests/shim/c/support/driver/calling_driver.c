/* Two driver entry points that call their caller back, as no function of the real driver does inside the gate but any
 * may: what leaves them is a return, an exception, a longjmp, or the end of the thread.  */
unsigned int cuLaunch(void (*body)(void *), void *data);
unsigned int cuTestCall(void (*body)(void *), void *data);

unsigned int cuLaunch(void (*body)(void *), void *data)
{
	body(data);
	return 0;
}

unsigned int cuTestCall(void (*body)(void *), void *data)
{
	body(data);
	return 0;
}
