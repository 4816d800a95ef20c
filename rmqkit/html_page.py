"""One self-contained HTML page: a shell (title, style, heading) and plots as inline SVG.

A page is a jinja2 template that extends the shell and fills its block `main`:

    {% extends "page" %}
    {% block main %}
    <h2>Hours</h2>
    <div class="plot">{{ plot|safe }}</div>
    {% endblock %}

The shell is `html_page.j2`. Its classes `valid`, `broken` and `inconclusive` set the colour of the
heading and of tags. Pages need `rmqkit[report]`: jinja2 and matplotlib. Commands check that before
they begin: `rmqkit.cli.drills.drill_output.check_report`.
"""

import io
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import rmqkit

#: the name of the shell in templates
SHELL = "page"


def render(
    package: str, template: str, content: Mapping[str, Any], *, title: str, headline: str, subject: str, mark: str = ""
) -> str:
    """Return the page of a template in the folder `templates` of a package.

    `headline` is the heading, `subject` the small line below it. `mark` is the class that colours
    the heading: valid, broken, inconclusive or "". Raises ImportError without jinja2.
    """
    import jinja2

    def source(name: str) -> str:
        file = files("rmqkit").joinpath("html_page.j2") if name == SHELL else files(package).joinpath("templates", name)
        return file.read_text(encoding="utf-8")

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    heading = {"title": title, "headline": headline, "subject": subject, "mark": mark, "version": rmqkit.__version__}
    return environment.get_template(template).render({**content, **heading})


def svg(width_in: float, height_in: float, draw: Callable[[Any], None]) -> str:
    """Return an `<svg>` element; `draw` gets a matplotlib figure of this size.

    The same drawing gives the same text. Raises ImportError without matplotlib.
    """
    out = io.StringIO()
    save_plot(out, width_in, height_in, draw, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def save_plot(target: Any, width_in: float, height_in: float, draw: Callable[[Any], None], **options: Any) -> None:
    """Write what `draw` draws to a path or file; `options` are those of matplotlib's `savefig`.

    By default the path's suffix is the format. Raises ImportError without matplotlib.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rmqkit", "font.family": "sans-serif", "font.size": 10}):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        draw(figure)
        figure.savefig(target, **options)
