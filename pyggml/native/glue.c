/* What cannot be written in Python: how a failed assertion is reported, and silence after the interpreter's end.
   Compiled into the extension, after the headers of the build. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

void pyggml_on_abort(const char * message);
void pyggml_on_log(enum ggml_log_level level, const char * text, void * data);

static int pyggml_abort_fd = 2;
static int pyggml_python_lives = 0;
static int pyggml_rehearsing = 0;

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

/* The plain C functions of ggml.h are called through PYGGML_COME_BACK (see plain_calls.py): an assertion that
   fails in one of them raises AssertionError with upstream's text. Only C frames are jumped over. */
static __thread jmp_buf * pyggml_way_back = NULL;
static __thread char pyggml_assertion[2048];

#define PYGGML_COME_BACK(CALL, CLEAN_UP)                                                          \
    do {                                                                                          \
        jmp_buf here;                                                                             \
        jmp_buf * outer = pyggml_way_back;                                                        \
        if (_setjmp(here) == 0) {                                                                 \
            pyggml_way_back = &here;                                                              \
            CALL                                                                                  \
            pyggml_way_back = outer;                                                              \
        } else {                                                                                  \
            pyggml_way_back = outer;                                                              \
            CLEAN_UP                                                                              \
            PyErr_SetString(PyExc_AssertionError, pyggml_assertion);                              \
            return NULL;                                                                          \
        }                                                                                         \
    } while (0)

static void pyggml_go_back(const char * message) {
    if (pyggml_way_back != NULL) {
        snprintf(pyggml_assertion, sizeof(pyggml_assertion), "%s", message);
        _longjmp(*pyggml_way_back, 1);
    }
}

/* Some constructors divide by a number they are given: a stride of 0. */
static struct sigaction pyggml_fpe_before;

static void pyggml_on_fpe(int number, siginfo_t * info, void * machine) {
    (void) machine;
    /* Raised by hand as well: Python's faulthandler, enabled later, passes the signal on that way. */
    pyggml_go_back("division by zero");
    /* Not ours: the instruction is executed again, and the handler before this one takes it. */
    sigaction(number, &pyggml_fpe_before, NULL);
    if (info->si_code <= 0) {
        raise(number);
    }
}

/* The message first: taking Python's lock for the stack may never succeed in a dying process. */
static void pyggml_abort(const char * message) {
    pyggml_go_back(message);
    pyggml_write(message, strlen(message));
    if (pyggml_rehearsing) {
        _exit(1);
    }
    pyggml_write("\n", 1);
    if (pyggml_python_lives) {
        pyggml_on_abort(message);
    }
}

/* Python may do anything in a log handler: nothing of that is left by the way back of the function that logs. */
static void pyggml_log(enum ggml_log_level level, const char * text, void * data) {
    jmp_buf * outer = pyggml_way_back;
    pyggml_way_back = NULL;
    pyggml_on_log(level, text, data);
    pyggml_way_back = outer;
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
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_sigaction = pyggml_on_fpe;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigaction(SIGFPE, &action, &pyggml_fpe_before);
}

static void pyggml_python_ends(void) {
    pyggml_python_lives = 0;
    llama_log_set(pyggml_log_nothing, NULL);
    ggml_log_set(pyggml_log_nothing, NULL);
}

/* Calls a function of upstream in a forked child, where an assertion of C++ may end the process.

   Called with Python's lock, so that the child can answer the split callback. It has this thread alone: the
   function must not compute. `text` gets the assertion's text.

   Returns 0 if the function came back, 1 if the child died, -1 if there was none. */
static int pyggml_rehearse(bool (*function)(void *, void *), void * first, void * second, char * text, int size, int seconds) {
    static const int fatal[] = { SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM };
    int ends[2];
    text[0] = 0;
    if (pipe(ends) != 0) {
        return -1;
    }
    /* What C has buffered must not be written twice. */
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit none = { 0, 0 };
        setrlimit(RLIMIT_CORE, &none);
        for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++) {
            signal(fatal[i], SIG_DFL);
        }
        alarm((unsigned) seconds);
        close(ends[0]);
        PyGC_Disable();
        pyggml_way_back = NULL;
        pyggml_abort_fd = ends[1];
        pyggml_rehearsing = 1;
        llama_log_set(pyggml_log_nothing, NULL);
        ggml_log_set(pyggml_log_nothing, NULL);
        function(first, second);
        _exit(0);
    }
    close(ends[1]);
    int length = 0;
    while (child > 0 && length < size - 1) {
        ssize_t n = read(ends[0], text + length, (size_t) (size - 1 - length));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            break;
        }
        length += (int) n;
    }
    text[length] = 0;
    close(ends[0]);
    if (child < 0) {
        return -1;
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            return -1;
        }
    }
    if (length == 0 && WIFSIGNALED(status)) {
        snprintf(text, (size_t) size, "%s", WTERMSIG(status) == SIGALRM ? "no answer in time" : strsignal(WTERMSIG(status)));
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}
