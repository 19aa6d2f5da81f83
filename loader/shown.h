/*
 * Text of unknown origin (paths, tensor names) made fit for a message: bounded, one line, no control characters.
 */
#ifndef IPCC_LOADER_SHOWN_H
#define IPCC_LOADER_SHOWN_H

#define SHOWN_BYTES 240

struct shown {
	char text[SHOWN_BYTES];
};

/* Copies `text`, control characters and bytes that are no UTF-8 escaped as \xNN. What is too long loses its middle: the
 * ends of paths and tensor names tell them apart. Returns s->text. */
const char *shown_text(struct shown *s, const char *text);

/* The same as an expression; lives until the end of the enclosing block. */
#define shown(text) shown_text(&(struct shown){""}, text)

#endif
