/* What the page says of this moment: calls, bytes, memory of the host.  */
#ifndef AFFINODE_PAGE_SAMPLE_H
#define AFFINODE_PAGE_SAMPLE_H

/* The page's sampler (page_set_sampler).  */
void page_take_sample(void);

#endif
