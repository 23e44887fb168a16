# Loaded while CMake enables CUDA (CMAKE_USER_MAKE_RULES_OVERRIDE_CUDA), which upstream does in the
# directory of its CUDA backend.
#
# libggml.so linked to libggml-cuda.so could be loaded on no machine without a driver. GGML_BACKEND_DL for
# the whole tree makes the CPU backend a plugin as well, which nothing can be linked to then, and many
# programs would load neither. So that option is set for this one directory: the CUDA backend becomes a
# plugin. libggml.so still registers it by itself, but through plugin.cpp, which loads it if it can.
if(CMAKE_CURRENT_SOURCE_DIR MATCHES "/ggml-cuda$")
    set(GGML_BACKEND_DL ON)
    target_sources(ggml PRIVATE "${CMAKE_CURRENT_LIST_DIR}/pyggml-cuda-plugin.cpp")
    # Under its own name the function would come before the plugin's in the plugin itself.
    target_compile_definitions(ggml PRIVATE ggml_backend_cuda_reg=pyggml_cuda_plugin)

    # CMake takes nvcc's own library directory for one that the dynamic linker knows, and leaves it out.
    # Behind the build's own, for a distribution's toolkit lies where its ggml does.
    list(APPEND CMAKE_INSTALL_RPATH ${PYGGML_CUDA_RPATH})
endif()
