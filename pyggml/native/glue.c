/* What must not depend on Python being alive: the abort message, and silence after the interpreter's end.
   Compiled into the extension, after the headers of the build. */
#include <string.h>
#include <unistd.h>

void pyggml_on_abort(const char * message);

static int pyggml_abort_fd = 2;
static int pyggml_python_lives = 0;

static void pyggml_write(const char * text, size_t left) {
    while (left > 0) {
        ssize_t n = write(pyggml_abort_fd, text, left);
        if (n <= 0) {
            return;
        }
        text += n;
        left -= (size_t) n;
    }
}

/* The message first: taking Python's lock for the stack may never succeed in a dying process. */
static void pyggml_abort(const char * message) {
    pyggml_write(message, strlen(message));
    pyggml_write("\n", 1);
    if (pyggml_python_lives) {
        pyggml_on_abort(message);
    }
}

static void pyggml_log_nothing(enum ggml_log_level level, const char * text, void * data) {
    (void) level;
    (void) text;
    (void) data;
}

static void pyggml_python_begins(int abort_fd) {
    pyggml_abort_fd = abort_fd;
    pyggml_python_lives = 1;
    ggml_set_abort_callback(pyggml_abort);
}

static void pyggml_python_ends(void) {
    pyggml_python_lives = 0;
    llama_log_set(pyggml_log_nothing, NULL);
    ggml_log_set(pyggml_log_nothing, NULL);
}
