// Part of libggml.so in builds with CUDA: what ggml's registry calls for the CUDA backend. It loads the
// plugin that lies beside libggml.so; without a driver there is no CUDA, and everything else works.
// PYGGML_CUDA=0 in the environment keeps the plugin out of a process.

#include "ggml-backend.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>

extern "C" __attribute__((visibility("hidden"))) ggml_backend_reg_t pyggml_cuda_plugin(void);

extern "C" ggml_backend_reg_t pyggml_cuda_plugin(void) {
    const char * wanted = std::getenv("PYGGML_CUDA");
    if (wanted != nullptr && std::strcmp(wanted, "0") == 0) {
        return nullptr;
    }
    Dl_info self;
    if (dladdr(reinterpret_cast<void *>(&pyggml_cuda_plugin), &self) == 0 || self.dli_fname == nullptr) {
        return nullptr;
    }
    const std::string library = self.dli_fname;
    const size_t      slash   = library.rfind('/');
    const std::string path    = (slash == std::string::npos ? "" : library.substr(0, slash + 1)) + "libggml-cuda.so";
    // It stays for good: backends cannot be unloaded safely.
    void * handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char * why = dlerror();
        // No driver is nothing to complain about.
        if (why != nullptr && std::strstr(why, "libcuda.so.1") == nullptr) {
            std::fprintf(stderr, "pyggml: the CUDA backend cannot be loaded: %s\n", why);
        }
        return nullptr;
    }
    void * init = dlsym(handle, "ggml_backend_init");
    return init == nullptr ? nullptr : reinterpret_cast<ggml_backend_reg_t (*)(void)>(init)();
}
