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
