# Included by every project() of the upstream tree (CMAKE_PROJECT_INCLUDE).
#
# Upstream's common/CMakeLists.txt asks for a new configuration whenever the git index changes, to embed
# the commit. The commit is given from outside here, and a mere `git status` may rewrite the index: that
# one dependency is taken out again, all others stay. CMake collects a directory's dependencies at its
# end, so it has to happen there; that upstream sets GIT_DIR is how the directory is recognised.
function(pyggml_forget_git_index)
    get_property(inputs DIRECTORY PROPERTY CMAKE_CONFIGURE_DEPENDS)
    if(inputs)
        list(FILTER inputs EXCLUDE REGEX "/index$")
        set_property(DIRECTORY PROPERTY CMAKE_CONFIGURE_DEPENDS "${inputs}")
    endif()
endfunction()

function(pyggml_saw_git_dir variable access)
    get_property(known DIRECTORY PROPERTY PYGGML_GIT_INDEX_FORGOTTEN)
    if(access STREQUAL "MODIFIED_ACCESS" AND NOT known)
        set_property(DIRECTORY PROPERTY PYGGML_GIT_INDEX_FORGOTTEN TRUE)
        cmake_language(DEFER CALL pyggml_forget_git_index)
    endif()
endfunction()

if(PROJECT_SOURCE_DIR STREQUAL CMAKE_SOURCE_DIR)
    variable_watch(GIT_DIR pyggml_saw_git_dir)
endif()

# Upstream's program for perplexities computes on its own; nothing else outside of ggml and src does.
set(PYGGML_OPTIMIZED llama-perplexity-impl)
# llama-bench takes a build without any optimisation for a debug build, and warns.
set(PYGGML_SLIGHTLY_OPTIMIZED llama-bench-impl)

# Compile the targets of a directory and of those below it without optimisation: -O0 comes after -O3 and wins.
# Hidden inline functions keep the loader from taking a slow copy where libllama has an optimised one.
function(pyggml_unoptimize directory)
    get_property(targets DIRECTORY "${directory}" PROPERTY BUILDSYSTEM_TARGETS)
    foreach(target IN LISTS targets)
        get_target_property(type ${target} TYPE)
        if(type MATCHES "EXECUTABLE|(STATIC|SHARED|MODULE|OBJECT)_LIBRARY" AND NOT target IN_LIST PYGGML_OPTIMIZED)
            set(level -O0)
            if(target IN_LIST PYGGML_SLIGHTLY_OPTIMIZED)
                set(level -O1)
            endif()
            target_compile_options(${target} PRIVATE ${level} $<$<COMPILE_LANGUAGE:CXX>:-fvisibility-inlines-hidden>)
        endif()
    endforeach()
    get_property(below DIRECTORY "${directory}" PROPERTY SUBDIRECTORIES)
    foreach(one IN LISTS below)
        pyggml_unoptimize("${one}")
    endforeach()
endfunction()

function(pyggml_unoptimize_all)
    get_property(directories DIRECTORY "${CMAKE_SOURCE_DIR}" PROPERTY SUBDIRECTORIES)
    foreach(directory IN LISTS directories)
        file(RELATIVE_PATH name "${CMAKE_SOURCE_DIR}" "${directory}")
        string(REGEX REPLACE "/.*" "" name "${name}")
        if(name IN_LIST PYGGML_UNOPTIMIZED)
            pyggml_unoptimize("${directory}")
        endif()
    endforeach()
endfunction()

# The chat parsers of common instantiate the same templates: compiled as one file they take a ninth of the time.
# The file includes them by relative paths, so that a compiler cache knows it in another clone.
function(pyggml_compile_parsers_together)
    if(NOT PYGGML_PARSERS_TOGETHER OR NOT TARGET llama-common)
        return()
    endif()
    get_target_property(sources llama-common SOURCES)
    get_target_property(directory llama-common SOURCE_DIR)
    set(text "")
    foreach(source IN LISTS sources)
        get_filename_component(source "${source}" ABSOLUTE BASE_DIR "${directory}")
        if(source MATCHES "/parsers/[^/]+\\.cpp$")
            file(RELATIVE_PATH path "${CMAKE_BINARY_DIR}" "${source}")
            string(APPEND text "#include \"${path}\"\n")
            set_source_files_properties("${source}" TARGET_DIRECTORY llama-common PROPERTIES HEADER_FILE_ONLY ON)
        endif()
    endforeach()
    if(text)
        file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/pyggml-parsers.cpp" CONTENT "${text}" @ONLY)
        target_sources(llama-common PRIVATE "${CMAKE_BINARY_DIR}/pyggml-parsers.cpp")
    endif()
endfunction()

# What reads models and text in src does not compute, and is not asked for every token.
set(PYGGML_READERS unicode llama-chat llama-grammar llama-mmap llama-model-loader llama-model-saver llama-quant llama-vocab)

function(pyggml_unoptimize_readers)
    if(NOT PYGGML_UNOPTIMIZED OR NOT TARGET llama)
        return()
    endif()
    get_target_property(directory llama SOURCE_DIR)
    foreach(name IN LISTS PYGGML_READERS)
        set_property(
            SOURCE "${directory}/${name}.cpp" TARGET_DIRECTORY llama APPEND PROPERTY COMPILE_OPTIONS -O1)
    endforeach()
endfunction()

if(PROJECT_SOURCE_DIR STREQUAL CMAKE_SOURCE_DIR)
    cmake_language(DEFER CALL pyggml_unoptimize_all)
    cmake_language(DEFER CALL pyggml_unoptimize_readers)
    cmake_language(DEFER CALL pyggml_compile_parsers_together)
    # Failed assertions name their file as the tree does. The second path is what ccache makes of the first.
    file(RELATIVE_PATH from_build "${CMAKE_BINARY_DIR}" "${CMAKE_SOURCE_DIR}")
    get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
    if(CXX IN_LIST languages)
        include(CheckCXXCompilerFlag)
        check_cxx_compiler_flag(-fmacro-prefix-map=a=b PYGGML_HAS_MACRO_PREFIX_MAP)
    endif()
    if(PYGGML_HAS_MACRO_PREFIX_MAP)
        foreach(prefix IN ITEMS "${CMAKE_SOURCE_DIR}" "${from_build}")
            add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fmacro-prefix-map=${prefix}/=>")
        endforeach()
    endif()
endif()
